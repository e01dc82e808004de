#include "penstock/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace penstock {
namespace {

DType dtype_at(int i) {
  return static_cast<DType>(i);
}

TEST(DType, every_name_parses_back_to_its_dtype) {
  for (int i = 0; i < kDTypeCount; ++i) EXPECT_EQ(parse_dtype(dtype_name(dtype_at(i))), dtype_at(i));
}

TEST(DType, names_are_those_of_the_format) {
  std::set<std::string_view> names;
  for (int i = 0; i < kDTypeCount; ++i) names.insert(dtype_name(dtype_at(i)));
  const std::set<std::string_view> expected = {"BOOL",    "F4",      "F6_E2M3", "F6_E3M2",     "U8",          "I8",
                                               "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16",
                                               "U16",     "F16",     "BF16",    "I32",         "U32",         "F32",
                                               "C64",     "F64",     "I64",     "U64",         "C32",         "C128"};
  EXPECT_EQ(names, expected);
}

TEST(DType, a_name_that_is_close_to_one_parses_to_nothing) {
  for (const char* name : {"", "f32", "F32 ", "F33", "F8_E4M3FN", "BOOLEAN", "F3"})
    EXPECT_FALSE(parse_dtype(name)) << name;
}

TEST(DType, a_name_with_a_nul_behind_it_parses_to_nothing) {
  EXPECT_FALSE(parse_dtype(std::string_view("F32\0", 4)));
}

TEST(DType, every_name_of_torch_parses_back) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const std::string_view name = dtype_torch_name(dtype_at(i));
    if (name.empty()) continue;
    EXPECT_EQ(parse_torch_dtype(name), dtype_at(i)) << name;
  }
  EXPECT_EQ(dtype_torch_name(DType::kF8E4M3), "float8_e4m3fn");
}

TEST(DType, torch_has_a_second_name_for_some) {
  EXPECT_EQ(parse_torch_dtype("half"), DType::kF16);
  EXPECT_EQ(parse_torch_dtype("float"), DType::kF32);
  EXPECT_EQ(parse_torch_dtype("double"), DType::kF64);
  EXPECT_EQ(parse_torch_dtype("short"), DType::kI16);
  EXPECT_EQ(parse_torch_dtype("int"), DType::kI32);
  EXPECT_EQ(parse_torch_dtype("long"), DType::kI64);
  EXPECT_EQ(parse_torch_dtype("chalf"), DType::kC32);
  EXPECT_EQ(parse_torch_dtype("cfloat"), DType::kC64);
  EXPECT_EQ(parse_torch_dtype("cdouble"), DType::kC128);
}

TEST(DType, what_torch_does_not_have_parses_to_nothing) {
  for (const char* name : {"", "F32", "qint8", "float4", "float33", "int4"})
    EXPECT_FALSE(parse_torch_dtype(name)) << name;
}

TEST(DType, what_people_type_is_found_in_any_case) {
  for (int i = 0; i < kDTypeCount; ++i) {
    EXPECT_EQ(find_dtype(dtype_name(dtype_at(i))), dtype_at(i));
    const std::string torch_name(dtype_torch_name(dtype_at(i)));
    if (torch_name.empty()) continue;
    EXPECT_EQ(find_dtype("torch." + torch_name), dtype_at(i));
  }
  EXPECT_EQ(find_dtype("fp64"), DType::kF64);
  EXPECT_EQ(find_dtype("FP32"), DType::kF32);
  EXPECT_EQ(find_dtype("Float"), DType::kF32);
  EXPECT_EQ(find_dtype("fp16"), DType::kF16);
  EXPECT_EQ(find_dtype("half"), DType::kF16);
  EXPECT_EQ(find_dtype("bf16"), DType::kBF16);
  EXPECT_EQ(find_dtype("double"), DType::kF64);
  EXPECT_EQ(find_dtype("int8"), DType::kI8);
  EXPECT_EQ(find_dtype("fp8"), DType::kF8E4M3);
  EXPECT_EQ(find_dtype("fp8_e5m2"), DType::kF8E5M2);
  EXPECT_EQ(find_dtype("f8_e4m3"), DType::kF8E4M3);
}

TEST(DType, what_is_no_type_is_not_found_and_all_that_are_can_be_listed) {
  for (const char* text : {"", "torch.", "float33", "fp", "Q4_K", "f32 "}) EXPECT_FALSE(find_dtype(text)) << text;
  for (int i = 0; i < kDTypeCount; ++i) EXPECT_NE(list_dtypes().find(dtype_name(dtype_at(i))), std::string::npos);
}

TEST(DType, widths_are_those_of_the_format) {
  EXPECT_EQ(dtype_bits(DType::kF4), 4U);
  EXPECT_EQ(dtype_bits(DType::kF6E2M3), 6U);
  EXPECT_EQ(dtype_bits(DType::kF6E3M2), 6U);
  for (const DType dtype : {DType::kBool, DType::kU8, DType::kI8, DType::kF8E5M2, DType::kF8E4M3, DType::kF8E8M0,
                            DType::kF8E4M3FNUZ, DType::kF8E5M2FNUZ}) {
    EXPECT_EQ(dtype_bits(dtype), 8U);
  }
  for (const DType dtype : {DType::kI16, DType::kU16, DType::kF16, DType::kBF16}) EXPECT_EQ(dtype_bits(dtype), 16U);
  for (const DType dtype : {DType::kI32, DType::kU32, DType::kF32}) EXPECT_EQ(dtype_bits(dtype), 32U);
  for (const DType dtype : {DType::kC64, DType::kF64, DType::kI64, DType::kU64}) EXPECT_EQ(dtype_bits(dtype), 64U);
  EXPECT_EQ(dtype_bits(DType::kC32), 32U);
  EXPECT_EQ(dtype_bits(DType::kC128), 128U);
}

TEST(DType, alignment_is_the_width_and_at_least_a_byte) {
  EXPECT_EQ(dtype_alignment(DType::kF4), 1U);
  EXPECT_EQ(dtype_alignment(DType::kF6E3M2), 1U);
  EXPECT_EQ(dtype_alignment(DType::kBool), 1U);
  EXPECT_EQ(dtype_alignment(DType::kBF16), 2U);
  EXPECT_EQ(dtype_alignment(DType::kC32), 4U);
  EXPECT_EQ(dtype_alignment(DType::kC64), 8U);
  EXPECT_EQ(dtype_alignment(DType::kC128), 16U);
}

TEST(DType, wider_types_come_later_in_the_enumeration) {
  // The order of tensors in a saved file rests on it. The sub-byte types stand behind BOOL, as in the reference.
  for (int i = static_cast<int>(DType::kU8); i < static_cast<int>(DType::kU64); ++i) {
    EXPECT_LE(dtype_bits(dtype_at(i)), dtype_bits(dtype_at(i + 1)));
  }
}

TEST(DType, only_real_floating_types_are_floating) {
  EXPECT_TRUE(dtype_is_floating(DType::kF4));
  EXPECT_TRUE(dtype_is_floating(DType::kF8E8M0));
  EXPECT_TRUE(dtype_is_floating(DType::kBF16));
  for (const DType dtype : {DType::kC32, DType::kC64, DType::kC128}) EXPECT_FALSE(dtype_is_floating(dtype));
  EXPECT_FALSE(dtype_is_floating(DType::kBool));
  EXPECT_FALSE(dtype_is_floating(DType::kI64));
}

TEST(DType, floating_types_of_at_least_eight_bits_can_be_cast) {
  EXPECT_TRUE(dtype_can_cast(DType::kF64, DType::kF8E4M3));
  EXPECT_TRUE(dtype_can_cast(DType::kF8E8M0, DType::kF32));
  EXPECT_FALSE(dtype_can_cast(DType::kF4, DType::kF32));
  EXPECT_FALSE(dtype_can_cast(DType::kF32, DType::kF6E2M3));
  EXPECT_FALSE(dtype_can_cast(DType::kI32, DType::kF32));
  for (const DType dtype : {DType::kC32, DType::kC64, DType::kC128}) {
    EXPECT_FALSE(dtype_can_cast(dtype, DType::kF32));
    EXPECT_FALSE(dtype_can_cast(DType::kF32, dtype));
  }
}

}  // namespace
}  // namespace penstock
