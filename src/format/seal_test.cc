#include "format/seal.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/checksum.h"
#include "format/test_files.h"

namespace penstock {
namespace {

using test::format_error;
using test::golden_file;
using test::unsupported_error;

Seal parse(const std::string& text) {
  return parse_seal(MemorySource(text, "s"));
}

// A seal whose own checksum is right, whatever it says.
std::string sealed_text(const std::string& fields) {
  const std::string text = "{\n" + fields + ",\n";
  return text + fmt::format("  \"crc32c\": \"{:08x}\"\n}}\n", crc32c(std::as_bytes(std::span(text))));
}

std::string refusal(const std::string& fields) {
  return format_error([&] { parse(sealed_text(fields)); });
}

const std::string kVersion = R"("penstock.seal": 1, )";
const std::string kRest = R"("size": 1000, "block_size": 512, "blocks": "0000000000000001")";

std::string refusal_of_tensors(const std::string& tensors) {
  return refusal(kVersion + kRest + R"(, "tensors": [)" + tensors + "]");
}

Seal example() {
  Seal seal;
  seal.size = 1000;
  seal.block_size = 512;
  seal.blocks = {0, 0xFFFFFFFF};
  seal.tensors = {{"a\"\n", DType::kF32, {2, 3}, {}, 100, 24, 0xE3069283},
                  {"view", DType::kBF16, {2, 2}, {4, 0}, 500, 6, 1},
                  {"zero", DType::kU8, {0}, {}, 1000, 0, 0}};
  return seal;
}

TEST(Seal, what_is_encoded_is_parsed_as_it_was) {
  Seal seal = example();
  for (const std::string& sha256 : {std::string(), std::string(64, 'e')}) {
    seal.sha256 = sha256;
    const std::string text = encode_seal(seal);
    const Seal again = parse(text);
    EXPECT_EQ(again.size, 1000);
    EXPECT_EQ(again.sha256, sha256);
    EXPECT_EQ(again.blocks, seal.blocks);
    EXPECT_EQ(again.tensors.size(), 3);
    EXPECT_EQ(again.tensors[1].byte_strides, (std::vector<std::int64_t>{4, 0}));
    EXPECT_EQ(again.tensors[0].name, "a\"\n");
    EXPECT_EQ(encode_seal(again), text);
  }
}

TEST(Seal, golden_seals_made_without_penstock_come_back_byte_for_byte) {
  for (const std::string name : {"shapes", "dtypes", "nothing"}) {
    const std::string text = golden_file("seal/" + name + ".safetensors.seal.json");
    ASSERT_FALSE(text.empty());
    EXPECT_EQ(encode_seal(parse(text)), text) << name;
  }
}

TEST(Seal, blocks_cover_the_file_and_the_last_may_be_shorter) {
  const Seal seal = example();
  EXPECT_EQ(seal.block(0), (ByteRange{0, 512}));
  EXPECT_EQ(seal.block(1), (ByteRange{512, 1000}));
  EXPECT_EQ(count_blocks(1024, 512), 2);
  EXPECT_EQ(count_blocks(1025, 512), 3);
  EXPECT_EQ(count_blocks(0, 512), 0);
  EXPECT_EQ(count_blocks(~std::uint64_t{0}, 512), std::uint64_t{1} << 55);
}

TEST(Seal, tensors_are_found_by_name) {
  const Seal seal = example();
  EXPECT_EQ(seal.find("view")->offset, 500);
  EXPECT_EQ(seal.find("vie"), nullptr);
  EXPECT_EQ(seal.find("zz"), nullptr);
}

TEST(Seal, a_tensor_is_described_by_all_that_a_header_says_of_it) {
  const SealedTensor sealed{"a", DType::kF32, {2, 3}, {}, 100, 24, 7};
  TensorInfo tensor{"a", DType::kF32, {2, 3}};
  tensor.offset = 100;
  tensor.nbytes = 24;
  EXPECT_TRUE(sealed.describes(tensor));
  const auto differs = [&](auto change) {
    TensorInfo other = tensor;
    change(other);
    return !sealed.describes(other);
  };
  EXPECT_TRUE(differs([](TensorInfo& other) { other.name = "b"; }));
  EXPECT_TRUE(differs([](TensorInfo& other) { other.dtype = DType::kI32; }));
  EXPECT_TRUE(differs([](TensorInfo& other) { other.shape = {3, 2}; }));
  EXPECT_TRUE(differs([](TensorInfo& other) { other.offset = 101; }));
  EXPECT_TRUE(differs([](TensorInfo& other) { other.nbytes = 23; }));
  EXPECT_TRUE(differs([](TensorInfo& other) { other.byte_strides = {4, 8}; }));
}

TEST(Seal, any_flipped_bit_of_a_seal_is_refused) {
  const std::string text = encode_seal(example());
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(format_error([&] { parse(damaged); }), "no error") << "bit " << bit;
  }
}

TEST(SealRefusal, a_seal_that_was_cut_off_or_edited) {
  const std::string text = encode_seal(example());
  const std::string cut_off = "s: is no seal: it does not end with its own checksum (was it cut off, or edited?)";
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_EQ(format_error([&] { parse(text.substr(0, length)); }), cut_off) << length;
  }
  EXPECT_EQ(format_error([&] { parse(text + "\n"); }), cut_off);
  std::string edited = text;
  edited.replace(edited.find("1000"), 4, "1001");
  EXPECT_NE(format_error([&] { parse(edited); }).find("s: the seal itself is damaged, or was edited: its CRC-32C is "),
            std::string::npos);
}

TEST(SealRefusal, other_versions_and_other_files) {
  EXPECT_EQ(unsupported_error([] { parse(sealed_text(R"("penstock.seal": 2, "new": {})")); }),
            "s: a seal of version 2: this penstock reads version 1");
  EXPECT_EQ(refusal(R"("weight_map": {})"), "s: byte 14: expected \"penstock.seal\", found \"weight_map\"");
  EXPECT_NE(format_error([] { parse("[]"); }).find("is no seal"), std::string::npos);
  EXPECT_EQ(format_error([] { parse("\xff"); }), "s: byte 0: the seal is not valid UTF-8");
}

TEST(SealRefusal, a_seal_that_is_too_large_is_not_read) {
  class Large final : public ByteSource {
    std::uint64_t size() const override { return kMaxSealSize + 1; }
    const std::string& path() const override { return path_; }
    void read(std::uint64_t, std::span<std::byte>) const override { FAIL() << "was read"; }
    std::string path_ = "s";
  };
  EXPECT_EQ(format_error([] { parse_seal(Large()); }),
            "s: a seal of 100000001 bytes, more than the limit of 100000000");
}

TEST(SealRefusal, fields_that_are_missing_twice_there_or_unknown) {
  EXPECT_EQ(refusal(kVersion + R"("size": 1)"), "s: \"block_size\" is missing");
  EXPECT_EQ(refusal(kVersion + kRest), "s: \"tensors\" is missing");
  EXPECT_NE(refusal(kVersion + R"("size": 1, "size": 1)").find("\"size\" appears twice"), std::string::npos);
  EXPECT_NE(refusal(kVersion + R"("path": "../../etc/passwd")").find("the unknown field \"path\""), std::string::npos);
}

TEST(SealRefusal, sizes_that_do_not_agree) {
  const std::string tensors = R"(, "tensors": [])";
  const auto blocks = [&](const std::string& size, const std::string& block_size, const std::string& digits) {
    return refusal(
        fmt::format(R"({}"size": {}, "block_size": {}, "blocks": "{}")", kVersion, size, block_size, digits) + tensors);
  };
  EXPECT_EQ(blocks("1000", "500", "0000000000000000"),
            "s: blocks of 500 bytes: expected a power of two from 512 to 1073741824");
  EXPECT_EQ(blocks("0", "0", ""), "s: blocks of 0 bytes: expected a power of two from 512 to 1073741824");
  EXPECT_EQ(blocks("1000", "512", "00000000"), "s: has the checksums of 1 blocks, but a file of 1000 bytes has 2");
  EXPECT_EQ(blocks("18446744073709551615", "1073741824", ""),
            "s: has the checksums of 0 blocks, but a file of 18446744073709551615 bytes has 17179869184");
  EXPECT_NE(blocks("1", "512", "0000000").find("\"blocks\" is not 8 lower-case hex digits"), std::string::npos);
  EXPECT_NE(blocks("1", "512", "0000000G").find("\"blocks\" is not 8 lower-case hex digits"), std::string::npos);
  EXPECT_NE(blocks("-1", "512", "").find("expected an integer from 0 to 2^64 - 1"), std::string::npos);
}

TEST(SealRefusal, a_digest_that_is_none) {
  EXPECT_NE(refusal(kVersion + R"("sha256": "abc")").find("\"sha256\" is not 64 lower-case hex digits"),
            std::string::npos);
  EXPECT_NE(refusal(kVersion + R"("sha256": ")" + std::string(64, 'A') + "\"").find("is not 64 lower-case"),
            std::string::npos);
}

TEST(SealRefusal, tensors_that_can_not_be) {
  const auto tensor = [](const std::string& name, const std::string& place) {
    return R"({"name": ")" + name + R"(", "dtype": "U8", "shape": [24], )" + place + R"(, "crc32c": "00000000"})";
  };
  const std::string fine = R"("offset": 0, "nbytes": 24)";
  EXPECT_EQ(refusal_of_tensors(tensor("a", fine)), "no error");
  EXPECT_EQ(refusal_of_tensors(tensor("a", R"("offset": 977, "nbytes": 24)")),
            "s: tensor \"a\": 24 bytes at 977 are not within a file of 1000");
  EXPECT_EQ(refusal_of_tensors(tensor("a", R"("offset": 18446744073709551615, "nbytes": 24)")),
            "s: tensor \"a\": 24 bytes at 18446744073709551615 are not within a file of 1000");
  EXPECT_NE(refusal_of_tensors(tensor("b", fine) + "," + tensor("a", fine)).find("tensor \"a\" comes after \"b\""),
            std::string::npos);
  EXPECT_NE(refusal_of_tensors(tensor("a", fine) + "," + tensor("a", fine)).find("each is there once"),
            std::string::npos);
  EXPECT_NE(
      refusal_of_tensors(tensor("a", R"("nbytes": 24, "offset": 0)")).find("expected \"offset\", found \"nbytes\""),
      std::string::npos);
  EXPECT_NE(refusal_of_tensors(tensor("a", R"("byte_strides": [], )" + fine)).find("1 dimensions and 0 strides"),
            std::string::npos);
  EXPECT_NE(refusal_of_tensors(R"({"name": "a", "dtype": "X9"})").find("the unknown dtype \"X9\""), std::string::npos);
  EXPECT_NE(refusal_of_tensors(R"({"name": "a", "dtype": "U8", "shape": [9223372036854775808]})").find("2^63 - 1"),
            std::string::npos);
}

}  // namespace
}  // namespace penstock
