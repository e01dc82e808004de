#include "api/convert/box.h"

#include <gtest/gtest.h>

#include <random>

namespace penstock {
namespace {

// Element by element.
std::vector<std::uint64_t> places(const Shape& tensor, const Shape& offsets, const Shape& shape) {
  std::vector<std::uint64_t> found{0};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    std::vector<std::uint64_t> next;
    for (const std::uint64_t place : found) {
      for (std::int64_t k = 0; k < shape[i]; ++k) {
        next.push_back(place * static_cast<std::uint64_t>(tensor[i]) + static_cast<std::uint64_t>(offsets[i] + k));
      }
    }
    found = std::move(next);
  }
  return found;
}

void check(const Shape& tensor, const Shape& offsets, const Shape& shape) {
  const std::vector<std::uint64_t> expected = places(tensor, offsets, shape);
  const Box box(tensor, offsets, shape);
  ASSERT_EQ(box.count(), expected.size());
  std::uint64_t total = 1;
  for (const std::int64_t size : tensor) total *= static_cast<std::uint64_t>(size);
  for (std::uint64_t element = 0; element <= total; ++element) {
    const auto before = std::lower_bound(expected.begin(), expected.end(), element) - expected.begin();
    ASSERT_EQ(box.count_before(element), static_cast<std::uint64_t>(before)) << element;
  }
  for (std::uint64_t begin = 0; begin <= expected.size(); ++begin) {
    std::uint64_t next = begin;
    box.for_each_run(begin, expected.size(), [&](std::uint64_t in_box, std::uint64_t in_tensor, std::uint64_t length) {
      ASSERT_EQ(in_box, next);
      for (std::uint64_t i = 0; i < length; ++i) ASSERT_EQ(in_tensor + i, expected[in_box + i]);
      next += length;
    });
    ASSERT_EQ(next, expected.size());
  }
}

TEST(Box, knows_where_its_elements_are) {
  check({}, {}, {});
  check({5}, {1}, {3});
  check({5}, {5}, {0});
  check({0, 4}, {0, 0}, {0, 4});
  check({4, 6}, {1, 0}, {2, 6});
  check({4, 6}, {0, 2}, {4, 3});
  check({4, 6}, {2, 5}, {2, 1});
  check({3, 4, 5}, {1, 0, 0}, {1, 4, 5});
  check({3, 4, 5}, {0, 1, 2}, {3, 2, 3});
}

TEST(Box, knows_it_of_any_box) {
  std::mt19937 random(5);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    Shape tensor, offsets, shape;
    for (std::int64_t i = draw(0, 4); i > 0; --i) {
      tensor.push_back(draw(1, 5));
      offsets.push_back(draw(0, tensor.back()));
      shape.push_back(draw(0, tensor.back() - offsets.back()));
    }
    check(tensor, offsets, shape);
  }
}

}  // namespace
}  // namespace penstock
