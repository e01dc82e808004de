#include "format/layout.h"

#include <gtest/gtest.h>

#include <limits>

#include "penstock/error.h"

namespace penstock {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

std::uint64_t nbytes(DType dtype, const Shape& shape) {
  return tensor_nbytes(dtype, shape, "file", "w");
}

std::string error_of(DType dtype, const Shape& shape) {
  try {
    nbytes(dtype, shape);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFormat);
    return error.what();
  }
  return "no error";
}

TEST(TensorNbytes, is_the_product_times_the_width) {
  EXPECT_EQ(nbytes(DType::kF32, {2, 3}), 24U);
  EXPECT_EQ(nbytes(DType::kBF16, {7}), 14U);
  EXPECT_EQ(nbytes(DType::kBool, {5, 1, 1}), 5U);
}

TEST(TensorNbytes, a_scalar_is_one_element) {
  EXPECT_EQ(nbytes(DType::kC64, {}), 8U);
}

TEST(TensorNbytes, sub_byte_types_are_packed) {
  EXPECT_EQ(nbytes(DType::kF4, {2, 3}), 3U);
  EXPECT_EQ(nbytes(DType::kF6E2M3, {4}), 3U);
  EXPECT_EQ(nbytes(DType::kF6E3M2, {0}), 0U);
}

TEST(TensorNbytes, sub_byte_types_must_fill_whole_bytes) {
  EXPECT_EQ(error_of(DType::kF4, {3}), "file: tensor \"w\": F4 [3] does not fill whole bytes");
  EXPECT_EQ(error_of(DType::kF6E2M3, {2}), "file: tensor \"w\": F6_E2M3 [2] does not fill whole bytes");
  EXPECT_EQ(error_of(DType::kF4, {}), "file: tensor \"w\": F4 [] does not fill whole bytes");
}

TEST(TensorNbytes, a_zero_dimension_makes_it_empty) {
  EXPECT_EQ(nbytes(DType::kF64, {3, 0, 5}), 0U);
  EXPECT_EQ(nbytes(DType::kF64, {0, kLargest / 64}), 0U);
}

TEST(TensorNbytes, negative_dimensions_are_refused) {
  EXPECT_EQ(error_of(DType::kU8, {2, -1}), "file: tensor \"w\": U8 [2, -1] has a negative dimension");
}

TEST(TensorNbytes, overflow_is_refused_wherever_a_zero_stands) {
  const std::string expected = "takes more than 2^64 bits";
  EXPECT_NE(error_of(DType::kF32, {kLargest}).find(expected), std::string::npos);
  EXPECT_NE(error_of(DType::kU8, {1LL << 32, 1LL << 32}).find(expected), std::string::npos);
  EXPECT_NE(error_of(DType::kU8, {0, 1LL << 32, 1LL << 32}).find(expected), std::string::npos);
  EXPECT_NE(error_of(DType::kU8, {1LL << 32, 1LL << 32, 0}).find(expected), std::string::npos);
}

TEST(ShapeText, many_dimensions_are_cut) {
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text(Shape{3}), "[3]");
  EXPECT_EQ(shape_text(Shape{3, 4}), "[3, 4]");
  EXPECT_EQ(shape_text(Shape(1000, 1)), "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ... 1000 dimensions]");
}

std::optional<std::pair<std::size_t, std::size_t>> duplicate_in(std::vector<std::string_view> names) {
  return find_duplicate(names);
}

TEST(FindDuplicate, finds_none_where_all_differ) {
  EXPECT_FALSE(duplicate_in({}));
  EXPECT_FALSE(duplicate_in({""}));
  EXPECT_FALSE(duplicate_in({"a", "b", "c"}));
  EXPECT_FALSE(duplicate_in({"c", "a", "b", ""}));
}

TEST(FindDuplicate, names_the_two_places_in_order) {
  EXPECT_EQ(duplicate_in({"a", "a"}), (std::pair<std::size_t, std::size_t>{0, 1}));
  EXPECT_EQ(duplicate_in({"b", "z", "a", "b"}), (std::pair<std::size_t, std::size_t>{0, 3}));
}

TEST(FindDuplicate, finds_one_pair_among_many_names) {
  std::vector<std::string> names(10000);
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = std::to_string((i * 7919) % 10007);
  std::vector<std::string_view> views(names.begin(), names.end());
  EXPECT_FALSE(find_duplicate(views));
  views[9999] = views[17];
  EXPECT_EQ(find_duplicate(views), (std::pair<std::size_t, std::size_t>{17, 9999}));
}

}  // namespace
}  // namespace penstock
