// One test per way in which a FlashPack file can be broken; each has a message of its own that names the place.
#include <gtest/gtest.h>

#include "format/flashpack_footer.h"
#include "format/test_files.h"

namespace penstock {
namespace {

using test::flashpack_file;
using test::format_error;
using test::parse_flashpack;
using test::u64le;

std::string refusal(const std::string& footer, const std::string& payload = {}) {
  return format_error([&] { parse_flashpack(flashpack_file(footer, payload)); });
}

std::string refusal_of_file(const std::string& file) {
  return format_error([&] { parse_flashpack(file); });
}

// A version 3 of `count` bytes with these entries of the index.
std::string bytes_with(const std::string& entries, const std::string& payload) {
  return refusal(R"({"format":"flashpack_v3","target_dtype":"uint8","total_elems":)" + std::to_string(payload.size()) +
                     R"(,"index":[)" + entries + "]}",
                 payload);
}

// A version 4 with these blocks, and nothing in them.
std::string blocks_with(const std::string& blocks, const std::string& payload) {
  return refusal(R"({"format":"flashpack_v4","macroblocks":[)" + blocks + R"(],"index":[]})", payload);
}

std::string entry(const std::string& name, const std::string& shape, const std::string& offset,
                  const std::string& length) {
  return R"({"name":")" + name + R"(","shape":)" + shape + R"(,"offset":)" + offset + R"(,"length":)" + length + "}";
}

std::string block(const std::string& dtype, const std::string& offset, const std::string& nbytes,
                  const std::string& elements) {
  return R"({"dtype":")" + dtype + R"(","offset_bytes":)" + offset + R"(,"length_bytes":)" + nbytes +
         R"(,"length_elems":)" + elements + "}";
}

// A file of zeros that ends as a FlashPack file does, without the memory for it; it knows how much it was asked for.
class HollowSource final : public ByteSource {
 public:
  HollowSource(std::uint64_t size, std::uint64_t footer_length)
      : size_(size), tail_(u64le(footer_length) + std::string(flashpack::kMagic)) {}

  std::uint64_t size() const override { return size_; }
  const std::string& path() const override { return path_; }
  void read(std::uint64_t offset, std::span<std::byte> bytes) const override {
    largest_read = std::max(largest_read, bytes.size());
    const std::uint64_t tail_begin = size_ - tail_.size();
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const bool in_tail = offset + i >= tail_begin;
      bytes[i] = in_tail ? static_cast<std::byte>(tail_[offset + i - tail_begin]) : std::byte{0};
    }
  }

  mutable std::size_t largest_read = 0;

 private:
  std::uint64_t size_;
  std::string tail_;
  std::string path_ = "f";
};

TEST(FlashPackRefusal, too_few_bytes) {
  EXPECT_EQ(refusal_of_file(""), "f: File too small to contain footer: 0 bytes, expected at least 16");
  EXPECT_EQ(refusal_of_file(std::string(flashpack::kMagic)),
            "f: File too small to contain footer: 8 bytes, expected at least 16");
}

TEST(FlashPackRefusal, wrong_mark) {
  EXPECT_EQ(refusal_of_file("{}" + u64le(2) + "FLASHPK1"),
            "f: byte 10: Bad magic: the file does not end with the mark of a FlashPack file");
  EXPECT_EQ(refusal_of_file("{}" + u64le(2) + std::string("flashpk\0", 8)),
            "f: byte 10: Bad magic: the file does not end with the mark of a FlashPack file");
}

TEST(FlashPackRefusal, length_beyond_the_file) {
  EXPECT_EQ(refusal_of_file("{}" + u64le(3) + std::string(flashpack::kMagic)),
            "f: byte 2: Corrupt footer length: it is 3, but only 2 bytes come before it");
  EXPECT_EQ(refusal_of_file(u64le(~std::uint64_t{0}) + std::string(flashpack::kMagic)),
            "f: byte 0: Corrupt footer length: it is 18446744073709551615, but only 0 bytes come before it");
}

TEST(FlashPackRefusal, length_beyond_any_footer_is_never_read) {
  const HollowSource source(std::uint64_t{1} << 40, std::uint64_t{1} << 39);
  EXPECT_EQ(format_error([&] { flashpack::parse_footer(source); }),
            "f: byte 1099511627760: Corrupt footer length: it is 549755813888, more than the limit of 536870912");
  EXPECT_EQ(source.largest_read, flashpack::kTailBytes);
}

TEST(FlashPackRefusal, footer_that_is_no_object) {
  EXPECT_EQ(refusal("", "payload"), "f: byte 7: the footer must start with '{'");
  EXPECT_EQ(refusal("[]", "payload"), "f: byte 7: the footer must start with '{'");
  EXPECT_EQ(refusal(" {}"), "f: byte 0: the footer must start with '{'");
}

TEST(FlashPackRefusal, long_footer_that_is_no_object_is_never_read) {
  // The first byte decides: a length of half a gigabyte asks for no memory.
  const HollowSource source(std::uint64_t{1} << 40, std::uint64_t{1} << 29);
  EXPECT_EQ(format_error([&] { flashpack::parse_footer(source); }),
            "f: byte 1098974756848: the footer must start with '{'");
  EXPECT_EQ(source.largest_read, flashpack::kTailBytes);
}

TEST(FlashPackRefusal, bad_utf8) {
  EXPECT_EQ(refusal("{\"ab\xff\":1}", "xx"), "f: byte 6: the footer is not valid UTF-8");
  EXPECT_EQ(refusal("{\"\xED\xA0\x80\":1}"), "f: byte 2: the footer is not valid UTF-8");
}

TEST(FlashPackRefusal, text_after_the_object) {
  EXPECT_EQ(refusal(R"({"format":"flashpack_v3","index":[]}x)"),
            "f: byte 36: expected nothing after the footer's JSON, found \"x\"");
  EXPECT_EQ(refusal(std::string("{\"format\":\"flashpack_v3\",\"index\":[]}\0", 37)),
            "f: byte 36: expected nothing after the footer's JSON, found \"\\x00\"");
}

TEST(FlashPackRefusal, json_that_ends_early) {
  EXPECT_EQ(refusal("{"), "f: byte 1: expected '\"', found the end of the text");
  EXPECT_EQ(refusal(R"({"format)"), "f: byte 8: the text ends inside a string");
  EXPECT_EQ(refusal(R"({"index":[{"name":"a","shape":[1)"),
            "f: byte 32: expected ',' or ']', found the end of the text");
}

TEST(FlashPackRefusal, unexpected_format) {
  EXPECT_EQ(refusal(R"({"format":"flashpack_v5","index":[]})"),
            "f: byte 24: Unexpected format: \"flashpack_v5\", expected \"flashpack_v3\" or \"flashpack_v4\"");
  EXPECT_EQ(refusal(R"({"format":"flashpack_v2","index":[]})"),
            "f: byte 24: Unexpected format: \"flashpack_v2\", expected \"flashpack_v3\" or \"flashpack_v4\"");
  EXPECT_EQ(refusal(R"({"format":3,"index":[]})"), "f: byte 10: format: expected a string, found 3");
}

TEST(FlashPackRefusal, fields_that_are_missing) {
  EXPECT_EQ(refusal(R"({"index":[]})"), "f: the footer: \"format\" is missing");
  EXPECT_EQ(refusal(R"({"format":"flashpack_v3"})"), "f: the footer: \"index\" is missing");
  EXPECT_EQ(refusal(R"({"format":"flashpack_v3","index":[]})"), "f: the footer: \"target_dtype\" is missing");
  EXPECT_EQ(refusal(R"({"format":"flashpack_v3","target_dtype":"int8","index":[]})"),
            "f: the footer: \"total_elems\" is missing");
  EXPECT_EQ(refusal(R"({"format":"flashpack_v4","index":[]})"),
            "f: Missing macroblock metadata: \"macroblocks\" is missing or empty");
  EXPECT_EQ(refusal(R"({"format":"flashpack_v4","macroblocks":[],"index":[]})"),
            "f: Missing macroblock metadata: \"macroblocks\" is missing or empty");
}

TEST(FlashPackRefusal, fields_of_a_block_that_are_missing) {
  EXPECT_EQ(blocks_with(R"({"offset_bytes":0,"length_bytes":0,"length_elems":0})", ""),
            "f: macroblock 0: \"dtype\" is missing");
  EXPECT_EQ(blocks_with(R"({"dtype":"int8","length_bytes":0,"length_elems":0})", ""),
            "f: macroblock 0: \"offset_bytes\" is missing");
  EXPECT_EQ(blocks_with(R"({"dtype":"int8","offset_bytes":0,"length_elems":0})", ""),
            "f: macroblock 0: \"length_bytes\" is missing");
  EXPECT_EQ(blocks_with(block("int8", "0", "0", "0") + R"(,{"dtype":"int8","offset_bytes":0,"length_bytes":0})", ""),
            "f: macroblock 1: \"length_elems\" is missing");
}

TEST(FlashPackRefusal, fields_of_a_tensor_that_are_missing) {
  EXPECT_EQ(bytes_with(R"({"shape":[1],"offset":0,"length":1})", "x"), "f: index entry 0: \"name\" is missing");
  EXPECT_EQ(bytes_with(R"({"name":"a","offset":0,"length":1})", "x"), "f: index entry 0: \"shape\" is missing");
  EXPECT_EQ(bytes_with(R"({"name":"a","shape":[1],"length":1})", "x"), "f: index entry 0: \"offset\" is missing");
  EXPECT_EQ(bytes_with(entry("a", "[1]", "0", "1") + R"(,{"name":"b","shape":[1],"offset":1})", "xy"),
            "f: index entry 1: \"length\" is missing");
}

TEST(FlashPackRefusal, fields_of_the_other_version) {
  EXPECT_EQ(refusal(R"({"format":"flashpack_v3","target_dtype":"int8","total_elems":0,"macroblocks":[)" +
                    block("int8", "0", "0", "0") + R"(],"index":[]})"),
            "f: the footer has \"macroblocks\", which flashpack_v3 has not");
  EXPECT_EQ(refusal(R"({"format":"flashpack_v4","target_dtype":"int8","macroblocks":[)" + block("int8", "0", "0", "0") +
                    R"(],"index":[]})"),
            "f: the footer has \"target_dtype\", which flashpack_v4 has not");
}

TEST(FlashPackRefusal, unknown_fields) {
  EXPECT_EQ(refusal(R"({"format":"flashpack_v3","x":1})"), "f: byte 28: the footer has the unknown field \"x\"");
  EXPECT_EQ(blocks_with(R"({"dtype":"int8","y":{}})", ""), "f: byte 59: macroblock 0 has the unknown field \"y\"");
  EXPECT_EQ(bytes_with(R"({"name":"a","stride":[1]})", "x"),
            "f: byte 94: index entry 0 has the unknown field \"stride\"");
}

TEST(FlashPackRefusal, fields_given_twice) {
  EXPECT_EQ(refusal(R"({"format":"flashpack_v3","format":"flashpack_v4","index":[]})"),
            "f: byte 33: the footer has \"format\" twice");
  EXPECT_EQ(blocks_with(R"({"dtype":"int8","dtype":"int8"})", ""), "f: byte 63: macroblock 0 has \"dtype\" twice");
  EXPECT_EQ(bytes_with(R"({"name":"a","n\u0061me":"b"})", "x"), "f: byte 97: index entry 0 has \"name\" twice");
}

TEST(FlashPackRefusal, compressed_blocks_by_name) {
  EXPECT_EQ(blocks_with(R"({"dtype":"int8","fpz":{"codec":1}})", ""),
            "f: byte 61: macroblock 0 is compressed (\"fpz\"), which this version can't read");
}

TEST(FlashPackRefusal, values_of_another_kind) {
  EXPECT_EQ(refusal(R"({"index":{}})"), "f: byte 9: index: expected an array, found an object");
  EXPECT_EQ(refusal(R"({"index":[1]})"), "f: byte 10: index entry 0: expected an object, found 1");
  EXPECT_EQ(refusal(R"({"macroblocks":null})"), "f: byte 15: macroblocks: expected an array, found null");
  EXPECT_EQ(refusal(R"({"macroblocks":[[]]})"), "f: byte 16: macroblock 0: expected an object, found an array");
  EXPECT_EQ(refusal(R"({"macroblocks":[{"dtype":7}]})"),
            "f: byte 25: the dtype of macroblock 0: expected a string, found 7");
  EXPECT_EQ(refusal(R"({"target_dtype":[]})"),
            "f: byte 16: the dtype of target_dtype: expected a string, found an array");
  EXPECT_EQ(refusal(R"({"index":[{"name":1}]})"), "f: byte 18: the name of a tensor: expected a string, found 1");
  EXPECT_EQ(refusal(R"({"index":[{"shape":1}]})"), "f: byte 19: the shape of a tensor: expected an array, found 1");
  EXPECT_EQ(refusal(R"({"metadata":"x"})"), "f: byte 12: metadata: expected an object, found a string");
  EXPECT_EQ(refusal(R"({"metadata":{"k":1}})"), "f: byte 17: metadata \"k\": expected a string, found 1");
}

TEST(FlashPackRefusal, metadata_key_given_twice) {
  EXPECT_EQ(refusal(R"({"metadata":{"k":"1","\u006b":"2"}})"), "f: metadata: the key \"k\" appears twice");
}

class BadNumber : public testing::TestWithParam<const char*> {};

TEST_P(BadNumber, is_refused_wherever_a_number_stands) {
  const std::string number = GetParam();
  const std::string expected = ": expected an integer from 0 to 2^64 - 1, found ";
  for (const std::string field : {"align_bytes", "total_payload_bytes", "total_elems"}) {
    EXPECT_NE(refusal("{\"" + field + "\":" + number + "}").find(expected), std::string::npos) << field;
  }
  for (const std::string field : {"offset_bytes", "length_bytes", "length_elems"}) {
    EXPECT_NE(refusal("{\"macroblocks\":[{\"" + field + "\":" + number + "}]}").find(expected), std::string::npos)
        << field;
  }
  for (const std::string field : {"offset", "length", "macroblock"}) {
    EXPECT_NE(refusal("{\"index\":[{\"" + field + "\":" + number + "}]}").find(expected), std::string::npos) << field;
  }
  EXPECT_NE(refusal("{\"index\":[{\"shape\":[1," + number + "]}]}").find(expected), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(FlashPackRefusal, BadNumber,
                         testing::Values("-1", "-0", "1.0", "1e3", "00", "01", "18446744073709551616", "null", "true",
                                         "\"1\"", "[1]", "{}", "NaN", "+1"));

TEST(FlashPackRefusal, dimension_beyond_what_tensors_have) {
  EXPECT_EQ(bytes_with(entry("a", "[9223372036854775808]", "0", "1"), "x"),
            "f: byte 114: a dimension of 9223372036854775808, more than 2^63 - 1");
}

TEST(FlashPackRefusal, unknown_dtype) {
  EXPECT_EQ(refusal(R"({"target_dtype":"float31"})"),
            "f: byte 25: target_dtype: Unsupported dtype string in metadata: \"float31\"");
  EXPECT_EQ(refusal(R"({"target_dtype":"F32"})"),
            "f: byte 21: target_dtype: Unsupported dtype string in metadata: \"F32\"");
  EXPECT_EQ(refusal(R"({"target_dtype":""})"), "f: byte 18: target_dtype: Unsupported dtype string in metadata: \"\"");
  EXPECT_EQ(refusal(R"({"macroblocks":[{"dtype":"torch.int8"}]})"),
            "f: byte 37: macroblock 0: Unsupported dtype string in metadata: \"torch.int8\"");
}

TEST(FlashPackRefusal, packed_and_quantised_dtypes) {
  for (const std::string name : {"float4_e2m1fn_x2", "qint8", "quint8", "quint4x2", "int4", "uint4", "bits8"}) {
    EXPECT_NE(refusal(R"({"target_dtype":")" + name + "\"}").find("Unsupported dtype string in metadata"),
              std::string::npos)
        << name;
  }
}

TEST(FlashPackRefusal, payload_of_another_size_than_the_footer_says) {
  EXPECT_EQ(refusal(R"({"format":"flashpack_v4","total_payload_bytes":3,"macroblocks":[)" +
                        block("int8", "0", "2", "2") + R"(],"index":[]})",
                    "xx"),
            "f: the footer says that the payload has 3 bytes, but it has 2");
  EXPECT_EQ(refusal(R"({"format":"flashpack_v3","target_dtype":"float32","total_elems":2,"index":[]})", "xxxx"),
            "f: total_elems 2 of float32 take 8 bytes, but the payload has 4");
}

TEST(FlashPackRefusal, elements_that_disagree_with_the_blocks) {
  EXPECT_EQ(refusal(R"({"format":"flashpack_v4","total_elems":3,"macroblocks":[)" + block("int8", "0", "2", "2") +
                        R"(],"index":[]})",
                    "xx"),
            "f: total_elems is 3, but the macroblocks have 2");
  EXPECT_EQ(blocks_with(block("float32", "0", "8", "3"), "xxxxxxxx"),
            "f: macroblock 0: length_bytes is 8, but 3 elements of float32 take 12");
}

TEST(FlashPackRefusal, sizes_that_overflow) {
  EXPECT_EQ(
      refusal(R"({"format":"flashpack_v3","target_dtype":"float32","total_elems":4611686018427387905,"index":[]})",
              "xxxx"),
      "f: total_elems: 4611686018427387905 elements take more than 2^64 bytes");
  EXPECT_EQ(blocks_with(block("complex128", "0", "0", "1152921504606846976"), ""),
            "f: macroblock 0: 1152921504606846976 elements take more than 2^64 bytes");
  EXPECT_EQ(bytes_with(entry("a", "[4294967296,4294967296]", "0", "0"), "x"),
            "f: tensor \"a\": U8 [4294967296, 4294967296] takes more than 2^64 bits");
}

TEST(FlashPackRefusal, blocks_beyond_the_payload) {
  EXPECT_EQ(blocks_with(block("int8", "0", "3", "3"), "xx"),
            "f: macroblock 0: its 3 bytes at 0 go beyond the 2 of the payload");
  EXPECT_EQ(blocks_with(block("int8", "3", "0", "0"), "xx"),
            "f: macroblock 0: its 0 bytes at 3 go beyond the 2 of the payload");
  EXPECT_EQ(blocks_with(block("int8", "18446744073709551615", "2", "2"), "xx"),
            "f: macroblock 0: its 2 bytes at 18446744073709551615 go beyond the 2 of the payload");
}

TEST(FlashPackRefusal, overlapping_blocks) {
  EXPECT_EQ(blocks_with(block("int8", "0", "2", "2") + "," + block("uint8", "1", "2", "2"), "xxx"),
            "f: macroblocks 0 and 1 overlap");
  EXPECT_EQ(blocks_with(
                block("int8", "0", "1", "1") + "," + block("bool", "1", "2", "2") + "," + block("uint8", "0", "2", "2"),
                "xxx"),
            "f: macroblocks 0 and 2 overlap");
  EXPECT_EQ(blocks_with(block("int8", "0", "2", "2") + "," + block("uint8", "0", "2", "2"), "xx"),
            "f: macroblocks 0 and 1 overlap");
}

TEST(FlashPackRefusal, an_empty_block_overlaps_nothing) {
  EXPECT_NE(blocks_with(block("int8", "0", "2", "2") + "," + block("uint8", "1", "0", "0"), "xx"),
            "f: macroblocks 0 and 1 overlap");
}

TEST(FlashPackRefusal, tensor_in_a_block_that_is_not_there) {
  EXPECT_EQ(bytes_with(R"({"name":"a","shape":[1],"offset":0,"length":1,"macroblock":1})", "x"),
            "f: tensor \"a\": Index entry references macroblock 1, but only 1 exist");
}

TEST(FlashPackRefusal, length_that_disagrees_with_the_shape) {
  EXPECT_EQ(bytes_with(entry("a", "[2,2]", "0", "3"), "xxxx"),
            "f: tensor \"a\": its length is 3, but [2, 2] has 4 elements");
  EXPECT_EQ(bytes_with(entry("a", "[]", "0", "0"), "x"), "f: tensor \"a\": its length is 0, but [] has 1 elements");
  EXPECT_EQ(bytes_with(entry("a", "[0,5]", "0", "5"), "xxxxx"),
            "f: tensor \"a\": its length is 5, but [0, 5] has 0 elements");
}

TEST(FlashPackRefusal, tensors_beyond_their_block) {
  EXPECT_EQ(bytes_with(entry("a", "[2]", "1", "2"), "xx"),
            "f: tensor \"a\": its 2 elements at 1 go beyond the 2 of macroblock 0");
  EXPECT_EQ(bytes_with(entry("a", "[0]", "3", "0"), "xx"),
            "f: tensor \"a\": its 0 elements at 3 go beyond the 2 of macroblock 0");
  EXPECT_EQ(bytes_with(entry("a", "[2]", "18446744073709551615", "2"), "xx"),
            "f: tensor \"a\": its 2 elements at 18446744073709551615 go beyond the 2 of macroblock 0");
  // Within the payload, but not within its own block.
  EXPECT_EQ(refusal(R"({"format":"flashpack_v4","macroblocks":[)" + block("int8", "0", "1", "1") + "," +
                        block("uint8", "1", "2", "2") + R"(],"index":[)" + entry("a", "[2]", "0", "2") + "]}",
                    "xyz"),
            "f: tensor \"a\": its 2 elements at 0 go beyond the 1 of macroblock 0");
}

TEST(FlashPackRefusal, overlapping_tensors) {
  EXPECT_EQ(bytes_with(entry("a", "[2]", "0", "2") + "," + entry("b", "[2]", "1", "2"), "xyz"),
            "f: tensors \"a\" and \"b\" overlap");
  // Not neighbours in the index, and with an empty one between them.
  EXPECT_EQ(bytes_with(entry("b", "[2]", "1", "2") + "," + entry("e", "[0]", "1", "0") + "," +
                           entry("c", "[1]", "3", "1") + "," + entry("a", "[2]", "0", "2"),
                       "wxyz"),
            "f: tensors \"a\" and \"b\" overlap");
}

TEST(FlashPackRefusal, duplicate_names) {
  EXPECT_EQ(bytes_with(entry("a", "[1]", "0", "1") + "," + entry("b", "[1]", "1", "1") + "," +
                           entry("\\u0061", "[1]", "2", "1"),
                       "xyz"),
            "f: tensor \"a\" appears twice in the index");
  EXPECT_EQ(bytes_with(entry("a", "[0]", "0", "0") + "," + entry("a", "[0]", "0", "0"), "x"),
            "f: tensor \"a\" appears twice in the index");
}

TEST(FlashPackRefusal, hostile_names_are_made_fit_for_one_line) {
  const std::string message = bytes_with(entry(std::string(5000, 'n') + "\\n", "[2]", "0", "1"), "x");
  EXPECT_LT(message.size(), 400U);
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(FlashPackRefusal, blocks_and_tensors_are_refused_alike) {
  // Whoever asks for the blocks alone gets a file of which all was checked.
  const std::string file =
      flashpack_file(R"({"format":"flashpack_v3","target_dtype":"uint8","total_elems":1,"index":[)" +
                         entry("a", "[2]", "0", "2") + "]}",
                     "x");
  EXPECT_EQ(format_error([&] { flashpack::parse_blocks(MemorySource(file, "f")); }),
            "f: tensor \"a\": its 2 elements at 0 go beyond the 1 of macroblock 0");
}

}  // namespace
}  // namespace penstock
