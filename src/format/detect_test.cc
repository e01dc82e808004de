#include "format/detect.h"

#include <gtest/gtest.h>

#include "format/test_files.h"

namespace penstock {
namespace {

using namespace std::string_literals;
using test::argument_error;
using test::format_error;
using test::golden_file;

// The list of formats grows; what it holds is tested once.
std::string without_list(std::string message) {
  const std::size_t begin = message.find("flashpack, ");
  if (begin != std::string::npos) message.replace(begin, message.find(')', begin) - begin, "...");
  return message;
}

std::string refusal(const std::string& file) {
  return without_list(format_error([&] { parse_layout(MemorySource(file, "f")); }));
}

std::string stranger(const std::string& what) {
  return "f: this is " + what + ", which this version can't read (it reads ...)";
}

std::string stranger_bytes(const std::string& hex, int count) {
  return "f: not a format that this version reads (...): the " + std::to_string(count) + " bytes start with " + hex;
}

TEST(Detect, safetensors_is_known_by_its_bytes) {
  const Layout layout = parse_layout(MemorySource(golden_file("safetensors/shapes.safetensors"), "no-suffix"));
  EXPECT_EQ(layout.format, "safetensors");
  EXPECT_EQ(layout.tensors.size(), 6U);
}

TEST(Detect, a_damaged_safetensors_file_has_its_own_message) {
  EXPECT_EQ(refusal(golden_file("safetensors/shapes.safetensors") + "x"),
            "f: bytes after the last tensor: the tensors take 31, but the file has 32 after its header");
  EXPECT_EQ(refusal("\xff\xff\xff\xff\xff\xff\xff\xff{}"s),
            "f: byte 0: the header length is 18446744073709551615, more than the limit of 100000000");
}

TEST(Detect, an_empty_file_is_called_empty) {
  EXPECT_EQ(refusal(""), "f: the file is empty");
}

TEST(Detect, strangers_are_called_by_their_name) {
  EXPECT_EQ(refusal("\x80\x02}q\x00."s), stranger("a Python pickle"));
  EXPECT_EQ(refusal("\x80\x04\x95\x0b\x00\x00"s), stranger("a Python pickle"));
  EXPECT_EQ(refusal("GGUF\x03\x00\x00\x00"s), stranger("a GGUF file"));
  EXPECT_EQ(refusal("\x89HDF\r\n\x1a\n\x00"s), stranger("an HDF5 file"));
  EXPECT_EQ(refusal("<!DOCTYPE html><html>"), stranger("an HTML page"));
  EXPECT_EQ(refusal("<html><head>"), stranger("an HTML page"));
  EXPECT_EQ(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
            stranger("a Git LFS pointer, not the file it stands for"));
  EXPECT_EQ(refusal("{\"weight_map\":1}"), stranger("JSON text"));
}

TEST(Detect, flashpack_is_known_by_its_end) {
  const Layout layout = parse_layout(MemorySource(golden_file("flashpack/shapes.flashpack"), "no-suffix"));
  EXPECT_EQ(layout.format, "flashpack");
  EXPECT_FALSE(layout.tensors.empty());
}

TEST(Detect, a_damaged_flashpack_file_has_its_own_message) {
  EXPECT_EQ(refusal(test::flashpack_file("{}", "payload")), "f: the footer: \"format\" is missing");
  EXPECT_EQ(refusal("0123456FLASHPK\x00"s), stranger_bytes("30 31 32 33 34 35 36 46 4c 41 53 48 50 4b 00", 15));
}

TEST(Detect, a_mark_at_the_end_is_surer_than_a_header_at_the_start) {
  // The payload of this one begins as a safetensors file does.
  const std::string payload = test::safetensors_file("{}");
  const std::string file =
      test::flashpack_file(R"({"format":"flashpack_v3","target_dtype":"uint8","total_elems":10,"index":[]})", payload);
  EXPECT_EQ(parse_layout(MemorySource(file, "f")).format, "flashpack");
}

TEST(Detect, anything_else_is_shown_by_its_first_bytes) {
  EXPECT_EQ(refusal("garbage, and more of it"), stranger_bytes("67 61 72 62 61 67 65 2c 20 61 6e 64 20 6d 6f 72", 23));
  EXPECT_EQ(refusal("\x00"s), stranger_bytes("00", 1));
}

TEST(Detect, a_refusal_lists_the_formats_that_are_read) {
  const std::string message = format_error([] { parse_layout(MemorySource(std::string_view("garbage"), "f")); });
  EXPECT_NE(message.find("(flashpack, "), std::string::npos) << message;
  EXPECT_NE(message.find("safetensors)"), std::string::npos) << message;
}

TEST(FormatForSave, follows_the_suffix) {
  EXPECT_EQ(format_for_save("", "dir/model.safetensors"), "safetensors");
  EXPECT_EQ(format_for_save("", "dir/model.flashpack"), "flashpack");
}

TEST(FormatForSave, a_named_format_wins_over_the_suffix) {
  EXPECT_EQ(format_for_save("safetensors", "model.bin"), "safetensors");
  EXPECT_EQ(format_for_save("flashpack", "model.safetensors"), "flashpack");
}

TEST(FormatForSave, an_unknown_name_is_refused) {
  EXPECT_EQ(without_list(argument_error([] { format_for_save("gguf", "m.safetensors"); })),
            "the format \"gguf\" is not one that this version writes (...)");
}

TEST(FormatForSave, an_unknown_suffix_is_refused) {
  EXPECT_EQ(without_list(argument_error([] { format_for_save("", "m.npz"); })),
            "m.npz: no format was named, and the suffix stands for none that this version writes (...)");
}

TEST(FormatForSave, the_suffixes_of_torch_stand_for_its_zip) {
  for (const char* path : {"m.pt", "m.pth", "pytorch_model.bin"}) EXPECT_EQ(format_for_save("", path), "torch") << path;
}

TEST(FormatBySuffix, the_suffix_decides) {
  EXPECT_EQ(format_by_suffix("a/model.safetensors"), "safetensors");
  EXPECT_EQ(format_by_suffix("model.flashpack"), "flashpack");
  for (const char* path : {"model.pt", "model.pth", "pytorch_model.bin"}) {
    EXPECT_EQ(format_by_suffix(path), "torch") << path;
  }
  for (const char* path : {"", "model", "model.gguf", "model.pt.bak"}) EXPECT_EQ(format_by_suffix(path), "") << path;
}

TEST(EncodeLayout, each_format_gets_its_own_options) {
  const std::vector specs = {test::make_spec("a", DType::kU8, {1}), test::make_spec("b", DType::kU8, {2})};
  EncodeOptions options;
  options.flashpack = {.align_bytes = 16, .keep_order = true};
  EXPECT_EQ(encode_layout("flashpack", specs, {}, options).offsets, (std::vector<std::uint64_t>{0, 16}));
  const std::uint64_t without = encode_layout("safetensors", specs, {}, options).offsets[0];
  options.safetensors_empty_metadata = true;
  EXPECT_GT(encode_layout("safetensors", specs, {}, options).offsets[0], without);
  EXPECT_EQ(without_list(argument_error([&] { encode_layout("gguf", specs, {}, options); })),
            "the format \"gguf\" is not one that this version writes (...)");
}

TEST(DataSuffixes, safetensors_is_looked_for_first) {
  ASSERT_GE(data_suffixes().size(), 2U);
  EXPECT_EQ(data_suffixes()[0], ".safetensors");
  EXPECT_EQ(data_suffixes()[1], ".flashpack");
}

}  // namespace
}  // namespace penstock
