// Reading torch's legacy files.
#include <gtest/gtest.h>

#include "format/detect.h"
#include "format/test_files.h"
#include "format/test_pickle.h"
#include "format/torch_file.h"

namespace penstock {
namespace {

using namespace std::string_literals;
using test::format_error;
using test::legacy_file;
using test::legacy_start;
using test::legacy_storage;
using test::little;
using test::p_dict;
using test::p_global;
using test::p_integer;
using test::p_string;
using test::p_tensor;
using test::p_tuple;
using test::p_whole;
using test::unsupported_error;

const std::string kTwo = p_tensor(legacy_storage("FloatStorage", "11", 2), 0, {2}, {1});
const std::string kTwoData = little(std::uint64_t{2}) + "12345678";

Layout parse(const std::string& file) {
  return parse_layout(MemorySource(file, "f"));
}

std::string refusal_of(const std::string& file) {
  return format_error([&] { parse(file); });
}

std::string refusal(const std::string& body, const std::vector<std::string>& keys, const std::string& data) {
  return refusal_of(legacy_file(body, keys, data));
}

TEST(TorchLegacyTest, storages_follow_in_the_order_of_the_keys) {
  const std::string one = p_tensor(legacy_storage("ByteStorage", "9", 3), 0, {3}, {1});
  const std::string file =
      legacy_file(p_dict({{"b", one}, {"a", kTwo}}), {"11", "9"}, kTwoData + little(std::uint64_t{3}) + "xyz");
  const Layout layout = parse(file);
  EXPECT_EQ(layout.format, "torch-legacy");
  ASSERT_EQ(layout.tensors.size(), 2u);
  EXPECT_EQ(layout.tensors[0].name, "a");
  EXPECT_EQ(file.substr(layout.tensors[0].offset, layout.tensors[0].nbytes), "12345678");
  EXPECT_EQ(file.substr(layout.tensors[1].offset, layout.tensors[1].nbytes), "xyz");
}

TEST(TorchLegacyTest, protocols_with_frames_are_known_too) {
  const auto framed = [](const std::string& body) {
    return "\x80\x04\x95"s + little(std::uint64_t{body.size() + 1}) + body + ".";
  };
  const std::string magic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"s;
  const std::string file = framed(magic) + framed("M\xe9\x03") + framed(p_dict({{"little_endian", "\x88"}})) +
                           framed(p_dict({{"a", kTwo}})) + framed("](" + p_string("11") + "e") + kTwoData;
  EXPECT_EQ(parse(file).tensors[0].name, "a");
}

TEST(TorchLegacyTest, a_pickle_longer_than_the_first_read_is_read) {
  const std::string text(3'000'000, 't');
  const std::string file = legacy_file(p_dict({{"text", p_string(text)}, {"a", kTwo}}), {"11"}, kTwoData);
  const Layout layout = parse(file);
  EXPECT_EQ(file.substr(layout.tensors[0].offset, 8), "12345678");
}

TEST(TorchLegacyTest, counts_and_keys_that_do_not_fit_are_refused) {
  EXPECT_EQ(refusal(kTwo, {"11"}, little(std::uint64_t{3}) + "12345678").substr(0, 8), "f: byte ");
  EXPECT_NE(
      refusal(kTwo, {"11"}, little(std::uint64_t{3}) + "12345678").find("storage \"11\" has 3 elements, expected 2"),
      std::string::npos);
  EXPECT_EQ(refusal(kTwo, {}, ""), "f: storage \"11\" has no bytes");
  EXPECT_EQ(refusal(kTwo, {"11", "11"}, kTwoData + kTwoData), "f: it lists the storage \"11\" twice");
  EXPECT_EQ(refusal(kTwo, {"11", "12"}, kTwoData + kTwoData), "f: it lists the storage \"12\", which no tensor has");
  EXPECT_NE(refusal(kTwo, {"11"}, kTwoData + "x").find("1 bytes follow the last storage"), std::string::npos);
  EXPECT_NE(refusal(kTwo, {"11"}, kTwoData.substr(1)).find("truncated: storage \"11\""), std::string::npos);
  const std::string huge = p_tensor(legacy_storage("FloatStorage", "11", std::int64_t{1} << 50), 0, {2}, {1});
  EXPECT_NE(refusal(huge, {"11"}, little(std::uint64_t{1} << 50) + "12345678").find("takes 4503599627370504 bytes"),
            std::string::npos);
}

// As torch wrote them before 0.4: ('storage', class, key, location, count, (key of the view, offset, count)).
TEST(TorchLegacyTest, views_of_storages_are_read) {
  const auto view = [](int offset, int count) {
    const std::string part = p_tuple({p_string("v"), p_integer(offset), p_integer(count)});
    return p_tensor(legacy_storage("FloatStorage", "11", 2, part), 0, {1}, {1});
  };
  const Layout layout = parse(legacy_file(p_dict({{"a", view(0, 1)}, {"b", view(1, 1)}}), {"11"}, kTwoData));
  ASSERT_EQ(layout.tensors.size(), 2u);
  EXPECT_EQ(layout.tensors[1].offset - layout.tensors[0].offset, 4u);
  const std::string why = "a view of elements 1 to 3 of storage \"11\", which has 2";
  EXPECT_NE(refusal(view(1, 2), {"11"}, kTwoData).find(why), std::string::npos);
  EXPECT_NE(refusal(view(1, 0), {"11"}, kTwoData).find("needs element 0 of storage \"11\", which has 0"),
            std::string::npos);
}

TEST(TorchLegacyTest, of_several_objects_one_after_the_other_the_first_is_read) {
  const std::string one = legacy_file(kTwo, {"11"}, kTwoData);
  const std::string other = legacy_file(p_dict({}), {}, "");
  EXPECT_EQ(parse(one + other).tensors.size(), 1u);
  EXPECT_EQ(parse(one + p_whole("N")).tensors.size(), 1u);
  EXPECT_NE(refusal_of(one + "garbage").find("7 bytes follow the last storage"), std::string::npos);
}

TEST(TorchLegacyTest, the_beginning_must_be_right) {
  const std::string magic = legacy_start().substr(0, 15);
  const std::string rest =
      p_whole(p_dict({{"little_endian", "\x88"}})) + p_whole(kTwo) + p_whole("](" + p_string("11") + "e") + kTwoData;
  EXPECT_EQ(refusal_of(magic + p_whole("M\xe8\x03") + rest), "f: byte 15: expected version 1001 of the legacy format");
  EXPECT_EQ(refusal_of(magic + p_whole("N") + rest), "f: byte 15: expected version 1001 of the legacy format");
  std::string other = magic + p_whole("M\xe9\x03") + rest;
  EXPECT_EQ(refusal_of(other), "no error");
  other[7] = 'x';
  EXPECT_EQ(refusal_of(other),
            "f: this is a Python pickle, which this version can't read (it reads flashpack, torch, torch-legacy, "
            "safetensors)");
  const std::string big = p_whole(p_dict({{"little_endian", "\x89"}}));
  EXPECT_EQ(
      unsupported_error([&] { parse(magic + p_whole("M\xe9\x03") + big + p_whole(kTwo) + p_whole("]") + kTwoData); }),
      "f: it was written by a big-endian machine, which can't be read");
  EXPECT_EQ(refusal_of(magic + p_whole("M\xe9\x03") + p_whole("N") + p_whole("N") + p_whole("]")),
            "f: the system's sizes are not a dict");
}

TEST(TorchLegacyTest, gadgets_are_named_with_their_place_in_the_file) {
  const std::string file = legacy_file(p_global("os", "system"), {}, "");
  const torch::Checkpoint checkpoint = torch::read_legacy(MemorySource(file, "f"));
  EXPECT_EQ(unsupported_error([&] { torch::refuse_opaque(checkpoint, "f"); }),
            "f: the object: byte " + std::to_string(legacy_start().size() + 2) +
                ": the global \"os.system\" is not one that a checkpoint's data needs; it was not imported "
                "(opaque=\"keep\" loads the rest)");
  // What surrounds the object has no use for names.
  const std::string rest = p_whole("M\xe9\x03") + p_whole(p_global("os", "system"));
  EXPECT_NE(unsupported_error([&] { parse(legacy_start().substr(0, 15) + rest); }).find("the global \"os.system\""),
            std::string::npos);
}

TEST(TorchLegacyTest, lengths_beyond_the_file_are_refused) {
  EXPECT_NE(refusal("X" + little(std::uint32_t{0x7fffffff}), {}, "").find("the pickle ends before it is complete"),
            std::string::npos);
}

TEST(TorchLegacyTest, a_file_cut_anywhere_is_refused) {
  const std::string whole = legacy_file(p_dict({{"a", kTwo}}), {"11"}, kTwoData);
  EXPECT_EQ(refusal_of(whole), "no error");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(refusal_of(whole.substr(0, length)), "no error") << length;
  }
}

TEST(TorchLegacyTest, flipped_bits_never_crash) {
  const std::string whole = legacy_file(p_dict({{"a", kTwo}}), {"11"}, kTwoData);
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string file = whole;
    file[bit / 8] = static_cast<char>(file[bit / 8] ^ (1 << (bit % 8)));
    try {
      for (const TensorInfo& tensor : parse(file).tensors) EXPECT_LE(tensor.offset + tensor.extent(), file.size());
    } catch (const Error& error) {
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
    }
  }
}

TEST(TorchLegacyTest, tar_archives_of_the_first_versions_are_refused_by_name) {
  std::string tar(1024, '\0');
  tar.replace(0, 8, "storages");
  tar.replace(257, 5, "ustar");
  EXPECT_EQ(refusal_of(tar),
            "f: this is a tar archive, as torch.save made before 2018, which this version can't read (it reads "
            "flashpack, torch, torch-legacy, safetensors)");
}

}  // namespace
}  // namespace penstock
