// One test per way in which a file can be broken; each has a message of its own that names the place.
#include <gtest/gtest.h>

#include "format/test_files.h"

namespace penstock {
namespace {

using test::format_error;
using test::parse_safetensors;
using test::safetensors_file;
using test::u64le;

std::string refusal(const std::string& header, const std::string& data = {}) {
  return format_error([&] { parse_safetensors(safetensors_file(header, data)); });
}

std::string refusal_of_file(const std::string& file) {
  return format_error([&] { parse_safetensors(file); });
}

// A header with one tensor "a", given by its fields.
std::string one(const std::string& fields) {
  return "{\"a\":{" + fields + "}}";
}

TEST(SafetensorsRefusal, too_few_bytes) {
  EXPECT_EQ(refusal_of_file(""), "f: 0 bytes are too few for a safetensors file, which has at least 10");
  EXPECT_EQ(refusal_of_file("12345678{"), "f: 9 bytes are too few for a safetensors file, which has at least 10");
}

TEST(SafetensorsRefusal, header_longer_than_the_file) {
  EXPECT_EQ(refusal_of_file(u64le(100) + "{}"), "f: byte 0: the header length is 100, but only 2 bytes follow it");
}

TEST(SafetensorsRefusal, header_longer_than_100_mb) {
  EXPECT_EQ(refusal_of_file(u64le(100'000'001) + "{}"),
            "f: byte 0: the header length is 100000001, more than the limit of 100000000");
  EXPECT_EQ(refusal_of_file(u64le(~std::uint64_t{0}) + "{}"),
            "f: byte 0: the header length is 18446744073709551615, more than the limit of 100000000");
}

TEST(SafetensorsRefusal, header_too_short) {
  EXPECT_EQ(refusal_of_file(u64le(0) + "{}"), "f: byte 0: the header length is 0, less than the 2 of an empty header");
  EXPECT_EQ(refusal_of_file(u64le(1) + "{}"), "f: byte 0: the header length is 1, less than the 2 of an empty header");
}

TEST(SafetensorsRefusal, header_that_is_not_an_object) {
  EXPECT_EQ(refusal("[]"), "f: byte 8: the header must start with '{', found \"[\"");
  EXPECT_EQ(refusal("null"), "f: byte 8: the header must start with '{', found \"n\"");
}

TEST(SafetensorsRefusal, white_space_before_the_object) {
  EXPECT_EQ(refusal(" {}"), "f: byte 8: the header must start with '{', found \" \"");
  EXPECT_EQ(refusal("\xEF\xBB\xBF{}"), "f: byte 8: the header must start with '{', found \"\\xef\"");
}

TEST(SafetensorsRefusal, bad_utf8) {
  EXPECT_EQ(refusal("{\"\xFF\":1}"), "f: byte 10: the header is not valid UTF-8");
  EXPECT_EQ(refusal("{\"ab\xED\xA0\x80\":1}"), "f: byte 12: the header is not valid UTF-8");
}

TEST(SafetensorsRefusal, lone_surrogate_in_a_name) {
  EXPECT_EQ(refusal(R"({"\ud800":1})"), "f: byte 16: an escaped high surrogate without a low one after it");
}

TEST(SafetensorsRefusal, text_after_the_object) {
  EXPECT_EQ(refusal("{}x"), "f: byte 10: expected nothing but white space after the header's JSON, found \"x\"");
  EXPECT_EQ(refusal("{}{}"), "f: byte 10: expected nothing but white space after the header's JSON, found an object");
  EXPECT_EQ(refusal("{} }"), "f: byte 11: expected nothing but white space after the header's JSON, found \"}\"");
  EXPECT_EQ(refusal(std::string("{}\0", 3)),
            "f: byte 10: expected nothing but white space after the header's JSON, found \"\\x00\"");
}

TEST(SafetensorsRefusal, what_the_reference_writes_for_no_tensors_with_empty_metadata) {
  EXPECT_EQ(refusal(R"({},"__metadata__":{}}   )"),
            "f: byte 10: expected nothing but white space after the header's JSON, found \",\"");
}

TEST(SafetensorsRefusal, json_that_ends_early) {
  EXPECT_EQ(refusal("{ "), "f: byte 10: expected '\"', found the end of the text");
  EXPECT_EQ(refusal("{\"a\""), "f: byte 12: expected ':', found the end of the text");
  EXPECT_EQ(refusal("{\"a"), "f: byte 11: the text ends inside a string");
  EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[1)"), "f: byte 37: expected ',' or ']', found the end of the text");
}

TEST(SafetensorsRefusal, json_with_spare_or_missing_punctuation) {
  EXPECT_EQ(refusal("{,}"), "f: byte 9: expected '\"', found \",\"");
  EXPECT_EQ(refusal("{a:1}"), "f: byte 9: expected '\"', found \"a\"");
  EXPECT_EQ(refusal(R"({"__metadata__":{},})"), "f: byte 27: expected '\"', found \"}\"");
  EXPECT_EQ(refusal(R"({"__metadata__" {}})"), "f: byte 24: expected ':', found an object");
}

TEST(SafetensorsRefusal, raw_control_character_in_a_name) {
  EXPECT_EQ(refusal("{\"a\nb\":1}"), "f: byte 11: a string holds the control character 0x0a, which must be escaped");
}

TEST(SafetensorsRefusal, tensor_that_is_not_an_object) {
  EXPECT_EQ(refusal(R"({"a":["U8",[1],[0,1]]})", "x"), "f: byte 13: tensor \"a\": expected an object, found an array");
  EXPECT_EQ(refusal(R"({"a":null})"), "f: byte 13: tensor \"a\": expected an object, found null");
  EXPECT_EQ(refusal(R"({"a":"U8"})"), "f: byte 13: tensor \"a\": expected an object, found a string");
}

TEST(SafetensorsRefusal, duplicate_tensor_name) {
  const std::string record = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_EQ(refusal("{\"a\":" + record + ",\"a\":" + record + "}", "x"), "f: tensor \"a\" appears twice in the header");
}

TEST(SafetensorsRefusal, duplicate_tensor_name_with_other_data) {
  EXPECT_EQ(
      refusal(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
          R"("a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
          "xyz"),
      "f: tensor \"a\" appears twice in the header");
}

TEST(SafetensorsRefusal, duplicate_tensor_name_that_is_escaped_differently) {
  EXPECT_EQ(
      refusal(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
          "xy"),
      "f: tensor \"a\" appears twice in the header");
}

TEST(SafetensorsRefusal, duplicate_tensor_name_of_empty_tensors) {
  const std::string record = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_EQ(refusal("{\"a\":" + record + ",\"b\":" + record + ",\"a\":" + record + "}"),
            "f: tensor \"a\" appears twice in the header");
}

TEST(SafetensorsRefusal, duplicate_metadata) {
  EXPECT_EQ(refusal(R"({"__metadata__":{},"__metadata__":{}})"),
            "f: byte 27: \"__metadata__\" appears twice in the header");
  EXPECT_EQ(refusal(R"({"__metadata__":null,"__metadata__":{}})"),
            "f: byte 29: \"__metadata__\" appears twice in the header");
  EXPECT_EQ(refusal(R"({"__metadata__":{"k":"1","\u006b":"1"}})"), "f: __metadata__: the key \"k\" appears twice");
}

TEST(SafetensorsRefusal, metadata_that_is_not_strings) {
  EXPECT_EQ(refusal(R"({"__metadata__":nul})"), "f: byte 24: __metadata__: expected an object, found \"nul\"");
  EXPECT_EQ(refusal(R"({"__metadata__":[]})"), "f: byte 24: __metadata__: expected an object, found an array");
  EXPECT_EQ(refusal(R"({"__metadata__":{"k":1}})"), "f: byte 29: __metadata__ \"k\": expected a string, found 1");
  EXPECT_EQ(refusal(R"({"__metadata__":{"k":{}}})"),
            "f: byte 29: __metadata__ \"k\": expected a string, found an object");
}

TEST(SafetensorsRefusal, field_given_twice) {
  EXPECT_EQ(refusal(one(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])"), "x"),
            "f: byte 34: tensor \"a\" has \"dtype\" twice");
  EXPECT_EQ(refusal(one(R"("dtype":"U8","shape":[1],"sh\u0061pe":[1],"data_offsets":[0,1])"), "x"),
            "f: byte 51: tensor \"a\" has \"shape\" twice");
}

TEST(SafetensorsRefusal, unknown_field) {
  EXPECT_EQ(refusal(one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1)"), "x"),
            "f: byte 63: tensor \"a\" has the unknown field \"x\"");
}

TEST(SafetensorsRefusal, missing_field) {
  EXPECT_EQ(refusal(one(R"("shape":[1],"data_offsets":[0,1])"), "x"), "f: tensor \"a\": \"dtype\" is missing");
  EXPECT_EQ(refusal(one(R"("dtype":"U8","data_offsets":[0,1])"), "x"), "f: tensor \"a\": \"shape\" is missing");
  EXPECT_EQ(refusal(one(R"("dtype":"U8","shape":[1])"), "x"), "f: tensor \"a\": \"data_offsets\" is missing");
  EXPECT_EQ(refusal(one("")), "f: tensor \"a\": \"dtype\" is missing");
}

TEST(SafetensorsRefusal, unknown_dtype) {
  EXPECT_EQ(refusal(one(R"("dtype":"F128","shape":[1],"data_offsets":[0,16])")),
            "f: byte 22: tensor \"a\" has the unknown dtype \"F128\"");
  EXPECT_EQ(refusal(one(R"("dtype":"C128","shape":[1],"data_offsets":[0,16])")),
            "f: byte 22: tensor \"a\" has the unknown dtype \"C128\"");
  EXPECT_EQ(refusal(one(R"("dtype":"u8","shape":[1],"data_offsets":[0,1])"), "x"),
            "f: byte 22: tensor \"a\" has the unknown dtype \"u8\"");
  EXPECT_EQ(refusal(one(R"("dtype":7,"shape":[1],"data_offsets":[0,1])"), "x"),
            "f: byte 22: the dtype of tensor \"a\": expected a string, found 7");
}

TEST(SafetensorsRefusal, shape_that_is_not_a_list_of_counts) {
  const auto with_shape = [](const std::string& shape) {
    return refusal(one("\"dtype\":\"U8\",\"shape\":" + shape + ",\"data_offsets\":[0,1]"), "x");
  };
  EXPECT_EQ(with_shape("1"), "f: byte 35: the shape of tensor \"a\": expected an array, found 1");
  EXPECT_EQ(with_shape("[-1]"), "f: byte 36: expected an integer from 0 to 2^64 - 1, found -1");
  EXPECT_EQ(with_shape("[1.0]"), "f: byte 36: expected an integer from 0 to 2^64 - 1, found 1.0");
  EXPECT_EQ(with_shape("[1e0]"), "f: byte 36: expected an integer from 0 to 2^64 - 1, found 1e0");
  EXPECT_EQ(with_shape("[\"1\"]"), "f: byte 36: expected an integer from 0 to 2^64 - 1, found a string");
  EXPECT_EQ(with_shape("[1,[1]]"), "f: byte 38: expected an integer from 0 to 2^64 - 1, found an array");
  EXPECT_EQ(with_shape("[18446744073709551616]"),
            "f: byte 36: expected an integer from 0 to 2^64 - 1, found 18446744073709551616");
  EXPECT_EQ(with_shape("[9223372036854775808]"),
            "f: byte 55: tensor \"a\" has a dimension of 9223372036854775808, more than 2^63 - 1");
}

TEST(SafetensorsRefusal, shape_whose_product_overflows) {
  EXPECT_EQ(refusal(one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])")),
            "f: tensor \"a\": F32 [4294967296, 4294967296] takes more than 2^64 bits");
}

TEST(SafetensorsRefusal, sub_byte_tensor_that_does_not_fill_bytes) {
  EXPECT_EQ(refusal(one(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])"), "xy"),
            "f: tensor \"a\": F4 [3] does not fill whole bytes");
}

TEST(SafetensorsRefusal, data_offsets_that_are_not_two_counts) {
  const auto with_offsets = [](const std::string& offsets) {
    return refusal(one("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":" + offsets), "x");
  };
  EXPECT_EQ(with_offsets("[0]"), "f: byte 57: tensor \"a\" has 1 data_offsets, expected 2");
  EXPECT_EQ(with_offsets("[]"), "f: byte 56: tensor \"a\" has 0 data_offsets, expected 2");
  EXPECT_EQ(with_offsets("[0,1,2]"), "f: byte 61: tensor \"a\" has 3 data_offsets, expected 2");
  EXPECT_EQ(with_offsets("{}"), "f: byte 54: data_offsets of tensor \"a\": expected an array, found an object");
  EXPECT_EQ(with_offsets("[0,-1]"), "f: byte 57: expected an integer from 0 to 2^64 - 1, found -1");
  EXPECT_EQ(with_offsets("[1,0]"), "f: byte 59: tensor \"a\" begins at 1 and ends before that, at 0");
}

TEST(SafetensorsRefusal, size_that_disagrees_with_dtype_and_shape) {
  EXPECT_EQ(refusal(one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), "12345678"),
            "f: tensor \"a\": data_offsets [0, 8] hold 8 bytes, but F32 [3] takes 12");
}

TEST(SafetensorsRefusal, hole_between_tensors) {
  EXPECT_EQ(
      refusal(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
          "xyz"),
      "f: tensor \"b\": its data begins at 2, expected 1: a hole after tensor \"a\"");
}

TEST(SafetensorsRefusal, hole_before_the_first_tensor) {
  EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "xy"),
            "f: tensor \"a\": its data begins at 1, expected 0: a hole after the start");
}

TEST(SafetensorsRefusal, hole_before_an_empty_tensor) {
  EXPECT_EQ(
      refusal(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
          "xy"),
      "f: tensor \"b\": its data begins at 2, expected 1: a hole after tensor \"a\"");
}

TEST(SafetensorsRefusal, overlapping_tensors) {
  EXPECT_EQ(
      refusal(
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
          "xyz"),
      "f: tensor \"b\": its data begins at 1, expected 2: it overlaps tensor \"a\"");
  EXPECT_EQ(
      refusal(
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
          "xy"),
      "f: tensor \"b\": its data begins at 0, expected 2: it overlaps tensor \"a\"");
}

TEST(SafetensorsRefusal, empty_tensor_inside_another) {
  EXPECT_EQ(
      refusal(
          R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
          "xy"),
      "f: tensor \"b\": its data begins at 1, expected 2: it overlaps tensor \"a\"");
}

TEST(SafetensorsRefusal, data_that_is_cut_off) {
  EXPECT_EQ(refusal(one(R"("dtype":"U8","shape":[4],"data_offsets":[0,4])"), "xy"),
            "f: truncated: the tensors take 4 bytes, but the file has 2 after its header");
}

TEST(SafetensorsRefusal, bytes_after_the_last_tensor) {
  EXPECT_EQ(refusal(one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])"), "xyz"),
            "f: bytes after the last tensor: the tensors take 1, but the file has 3 after its header");
  EXPECT_EQ(refusal("{}", "x"),
            "f: bytes after the last tensor: the tensors take 0, but the file has 1 after its header");
}

TEST(SafetensorsRefusal, hostile_names_are_made_fit_for_one_line) {
  const std::string message = refusal("{\"" + std::string(1000, 'n') + "\\n\\u0000\":1}");
  EXPECT_LT(message.size(), 300U);
  EXPECT_EQ(refusal(R"({"a\nb":1})"), "f: byte 16: tensor \"a\\x0ab\": expected an object, found 1");
}

}  // namespace
}  // namespace penstock
