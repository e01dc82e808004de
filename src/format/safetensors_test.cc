// What is accepted, and what comes out of it. Refusals are in safetensors_refusal_test.cc.
#include "format/safetensors.h"

#include <gtest/gtest.h>

#include <set>

#include "format/test_files.h"

namespace penstock {
namespace {

using test::golden_file;
using test::parse_safetensors;
using test::safetensors_file;

std::vector<std::string> names_of(const Layout& layout) {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : layout.tensors) names.push_back(tensor.name);
  return names;
}

TEST(Safetensors, a_header_of_nothing_is_a_file_of_no_tensors) {
  const Layout layout = parse_safetensors(safetensors_file("{}"));
  EXPECT_EQ(layout.format, "safetensors");
  EXPECT_TRUE(layout.tensors.empty());
  EXPECT_TRUE(layout.metadata.empty());
}

TEST(Safetensors, a_tensor_has_its_place_from_the_start_of_the_file) {
  const std::string header = R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";
  const Layout layout = parse_safetensors(safetensors_file(header, std::string(24, 'x')));
  ASSERT_EQ(layout.tensors.size(), 1U);
  const TensorInfo& tensor = layout.tensors[0];
  EXPECT_EQ(tensor.name, "w");
  EXPECT_EQ(tensor.dtype, DType::kF32);
  EXPECT_EQ(tensor.shape, (Shape{2, 3}));
  EXPECT_EQ(tensor.file, 0U);
  EXPECT_EQ(tensor.offset, 8 + header.size());
  EXPECT_EQ(tensor.nbytes, 24U);
}

TEST(Safetensors, fields_may_come_in_any_order_with_any_white_space) {
  const Layout layout = parse_safetensors(safetensors_file(
      "{ \"w\" :\n{\t\"data_offsets\": [ 0 , 2 ],\r\n\"shape\":[ ], \"dtype\":\"F16\" } }\n \t", "xy"));
  ASSERT_EQ(layout.tensors.size(), 1U);
  EXPECT_EQ(layout.tensors[0].dtype, DType::kF16);
  EXPECT_TRUE(layout.tensors[0].shape.empty());
}

TEST(Safetensors, field_names_may_be_escaped) {
  const Layout layout = parse_safetensors(
      safetensors_file(R"({"\u0077":{"\u0064type":"\u00558","shape":[1],"data_offsets":[0,1]}})", "x"));
  ASSERT_EQ(layout.tensors.size(), 1U);
  EXPECT_EQ(layout.tensors[0].name, "w");
  EXPECT_EQ(layout.tensors[0].dtype, DType::kU8);
}

TEST(Safetensors, tensors_are_sorted_by_offset_whatever_the_order_of_the_header) {
  const Layout layout = parse_safetensors(safetensors_file(
      R"({"c":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
      R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
      "xyz"));
  EXPECT_EQ(names_of(layout), (std::vector<std::string>{"b", "a", "c"}));
}

TEST(Safetensors, empty_tensors_stand_before_the_one_that_starts_where_they_lie) {
  const Layout layout = parse_safetensors(safetensors_file(
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"z":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
      R"("y":{"dtype":"F32","shape":[3,0],"data_offsets":[0,0]},"x":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
      "ab"));
  EXPECT_EQ(names_of(layout), (std::vector<std::string>{"y", "z", "a", "x"}));
  EXPECT_EQ(layout.tensors[3].offset, layout.tensors[2].offset + 2);
}

TEST(Safetensors, metadata_is_kept_wherever_it_stands) {
  const std::string first =
      R"({"__metadata__":{"format":"pt","k\n":"v\u00e9"},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  const std::string last =
      R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"__metadata__":{"k\n":"v\u00e9","format":"pt"}})";
  const Metadata expected = {{"format", "pt"}, {"k\n", "v\u00e9"}};
  EXPECT_EQ(parse_safetensors(safetensors_file(first, "x")).metadata, expected);
  EXPECT_EQ(parse_safetensors(safetensors_file(last, "x")).metadata, expected);
}

TEST(Safetensors, metadata_that_is_null_is_no_metadata) {
  const Layout layout = parse_safetensors(
      safetensors_file(R"({"__metadata__": null ,"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  EXPECT_TRUE(layout.metadata.empty());
  ASSERT_EQ(layout.tensors.size(), 1u);
  EXPECT_EQ(layout.tensors[0].name, "w");
}

TEST(Safetensors, empty_metadata_is_no_metadata) {
  EXPECT_TRUE(parse_safetensors(safetensors_file(R"({"__metadata__":{}})")).metadata.empty());
}

TEST(Safetensors, an_empty_name_is_a_name) {
  EXPECT_EQ(
      names_of(parse_safetensors(safetensors_file(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"))),
      std::vector<std::string>{""});
}

TEST(Safetensors, every_dtype_of_the_reference_is_read) {
  const Layout layout = parse_safetensors(golden_file("safetensors/dtypes.safetensors"));
  ASSERT_EQ(layout.tensors.size(), 20U);
  for (const TensorInfo& tensor : layout.tensors) {
    const Shape expected = tensor.dtype == DType::kF4 ? Shape{2, 6} : Shape{2, 3};
    EXPECT_EQ(tensor.shape, expected) << tensor.name;
    EXPECT_EQ(tensor.nbytes, tensor.dtype == DType::kF4 ? 6U : 6 * dtype_bits(tensor.dtype) / 8) << tensor.name;
  }
}

TEST(Safetensors, six_bit_tensors_are_packed) {
  const Layout layout = parse_safetensors(golden_file("safetensors/six_bits.safetensors"));
  ASSERT_EQ(layout.tensors.size(), 2U);
  EXPECT_EQ(layout.tensors[0].dtype, DType::kF6E3M2);
  EXPECT_EQ(layout.tensors[0].nbytes, 6U);
  EXPECT_EQ(layout.tensors[1].dtype, DType::kF6E2M3);
  EXPECT_EQ(layout.tensors[1].nbytes, 3U);
}

TEST(Safetensors, odd_names_of_the_reference_are_read) {
  const auto names = names_of(parse_safetensors(golden_file("safetensors/names.safetensors")));
  const std::set<std::string> expected = {
      "",           " ",       "a",           "A",      "\u00e9",     "\u20ac",
      "\U0001d11e", "quote\"", "back\\slash", "slash/", "\n\r\t\b\f", std::string("\0\x01\x1f", 3),
      "\x7f",       "\u2028"};
  EXPECT_EQ(names.size(), expected.size());
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), expected);
}

TEST(Safetensors, looks_like_itself_even_when_damaged_further_on) {
  EXPECT_TRUE(safetensors::looks_like(MemorySource(safetensors_file("{}"))));
  EXPECT_TRUE(safetensors::looks_like(MemorySource(safetensors_file("  {"))));
  EXPECT_TRUE(safetensors::looks_like(MemorySource(std::string_view("\xff\xff\xff\xff\xff\xff\xff\xff{\"a\""))));
}

TEST(Safetensors, looks_like_nothing_without_its_brace) {
  EXPECT_FALSE(safetensors::looks_like(MemorySource(std::string_view())));
  EXPECT_FALSE(safetensors::looks_like(MemorySource(std::string_view("12345678"))));
  EXPECT_FALSE(safetensors::looks_like(MemorySource(std::string_view("12345678x{"))));
  EXPECT_FALSE(safetensors::looks_like(MemorySource(std::string(100, ' '))));
}

}  // namespace
}  // namespace penstock
