#include "transfer/strided.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

namespace penstock {
namespace {

// Row-major bytes, one element at a time.
std::vector<std::byte> flatten(const std::byte* data, const std::vector<std::int64_t>& shape,
                               const std::vector<std::int64_t>& strides, std::size_t width) {
  std::vector<std::byte> out;
  const std::int64_t count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  for (std::int64_t element = 0; element < count; ++element) {
    const std::byte* source = data;
    std::int64_t rest = element;
    for (std::size_t i = shape.size(); i > 0; --i) {
      source += rest % shape[i - 1] * strides[i - 1];
      rest /= shape[i - 1];
    }
    out.insert(out.end(), source, source + width);
  }
  return out;
}

TEST(StridedTest, contiguous_is_recognised) {
  EXPECT_TRUE(is_contiguous(std::vector<std::int64_t>{2, 3}, std::vector<std::int64_t>{12, 4}, 4));
  EXPECT_FALSE(is_contiguous(std::vector<std::int64_t>{2, 3}, std::vector<std::int64_t>{4, 8}, 4));
  EXPECT_TRUE(is_contiguous(std::vector<std::int64_t>{1, 3}, std::vector<std::int64_t>{999, 4}, 4));
  EXPECT_TRUE(is_contiguous(std::vector<std::int64_t>{0, 3}, std::vector<std::int64_t>{7, 9}, 4));
  EXPECT_TRUE(is_contiguous({}, {}, 8));
}

TEST(StridedTest, any_range_of_any_layout_is_read_right) {
  std::mt19937 random(3);
  std::vector<std::byte> memory(1 << 16);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 500; ++round) {
    const std::size_t width = std::size_t{1} << random() % 5;  // up to complex128
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
    for (std::size_t i = random() % 4 + 1; i > 0; --i) {
      shape.push_back(static_cast<std::int64_t>(random() % 5 + 1));
      // Also negative and zero (broadcast) ones.
      strides.push_back((static_cast<std::int64_t>(random() % 40) - 15) * static_cast<std::int64_t>(width));
    }
    const std::byte* data = memory.data() + memory.size() / 2;
    const auto expected = flatten(data, shape, strides, width);
    const StridedReader reader(data, shape, strides, width);
    const std::size_t begin = random() % (expected.size() / width) * width;
    const std::size_t length = (random() % ((expected.size() - begin) / width) + 1) * width;
    std::vector<std::byte> out(length);
    reader.read(begin, out);
    EXPECT_EQ(std::memcmp(out.data(), expected.data() + begin, length), 0);
  }
}

}  // namespace
}  // namespace penstock
