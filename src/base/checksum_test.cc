#include "base/checksum.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace penstock {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::vector<std::byte> random_bytes(std::size_t size) {
  std::mt19937 random(static_cast<unsigned>(size));
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// The definition, bit by bit.
std::uint32_t slow_crc32c(std::span<const std::byte> bytes) {
  std::uint32_t state = 0xFFFFFFFF;
  for (const std::byte byte : bytes) {
    state ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0x82F63B78U : 0U);
  }
  return ~state;
}

TEST(Checksum, check_value_of_the_standard) {
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283U);
}

TEST(Checksum, vectors_of_rfc_3720) {
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0})), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xFF})), 0x62A8AB43U);
}

TEST(Checksum, nothing_has_checksum_zero) {
  EXPECT_EQ(crc32c({}), 0U);
}

TEST(Checksum, every_length_and_alignment_agrees_with_the_definition) {
  const auto bytes = random_bytes(700);
  for (std::size_t begin = 0; begin < 16; ++begin) {
    for (std::size_t length = 0; begin + length <= bytes.size(); length += 13) {
      const auto part = std::span(bytes).subspan(begin, length);
      ASSERT_EQ(crc32c(part), slow_crc32c(part)) << begin << " " << length;
    }
  }
}

TEST(Checksum, seed_continues_what_came_before) {
  const auto bytes = random_bytes(5000);
  const auto all = std::span(bytes);
  for (const std::size_t split : {0UL, 1UL, 63UL, 64UL, 4096UL, 5000UL}) {
    EXPECT_EQ(crc32c(all.subspan(split), crc32c(all.first(split))), crc32c(all)) << split;
  }
}

TEST(Checksum, combine_joins_parts_at_every_split) {
  const auto bytes = random_bytes(300);
  const auto all = std::span(bytes);
  for (std::size_t split = 0; split <= bytes.size(); ++split) {
    const auto second = all.subspan(split);
    ASSERT_EQ(crc32c_combine(crc32c(all.first(split)), crc32c(second), second.size()), crc32c(all)) << split;
  }
}

TEST(Checksum, combine_joins_many_parts_in_any_grouping) {
  const auto bytes = random_bytes(100000);
  const auto all = std::span(bytes);
  const auto a = all.first(1);
  const auto b = all.subspan(1, 65536);
  const auto c = all.subspan(65537);
  const std::uint32_t left = crc32c_combine(crc32c_combine(crc32c(a), crc32c(b), b.size()), crc32c(c), c.size());
  const std::uint32_t right =
      crc32c_combine(crc32c(a), crc32c_combine(crc32c(b), crc32c(c), c.size()), b.size() + c.size());
  EXPECT_EQ(left, crc32c(all));
  EXPECT_EQ(right, crc32c(all));
}

TEST(Checksum, combine_knows_lengths_beyond_four_gigabytes) {
  // x^(8 (m + n)) is x^(8m) x^(8n): appending m + n zeros at once is appending m, then n.
  const std::uint64_t m = 5'000'000'000;
  const std::uint64_t n = (std::uint64_t{1} << 40) + 3;
  const std::uint32_t start = 0x12345678;
  EXPECT_EQ(crc32c_combine(start, 0, m + n), crc32c_combine(crc32c_combine(start, 0, m), 0, n));
  EXPECT_NE(crc32c_combine(start, 0, m), crc32c_combine(start, 0, m & 0xFFFFFFFF));
}

}  // namespace
}  // namespace penstock
