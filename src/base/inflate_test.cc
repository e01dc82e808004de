#include "base/inflate.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

namespace penstock {
namespace {

using namespace std::string_literals;

const std::string kThousand = "\x4b\x4c\x1c\x05\xa3\x60\x14\x0c\x77\x00\x00"s;  // "a", a thousand times

struct Inflated {
  std::string problem;
  std::string text;
};

Inflated inflated(const std::string& stream, std::uint64_t nbytes) {
  Inflated result;
  std::size_t at = 0;
  const char* const problem = inflate(
      stream.size(), nbytes,
      [&](std::span<std::byte> bytes) {
        ASSERT_LE(bytes.size(), stream.size() - at);
        std::memcpy(bytes.data(), stream.data() + at, bytes.size());
        at += bytes.size();
      },
      [&](std::span<const std::byte> bytes) {
        result.text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      });
  result.problem = problem == nullptr ? "none" : problem;
  return result;
}

// Blocks that are not compressed, of up to 65535 bytes each.
std::string stored_blocks(const std::string& text) {
  std::string stream;
  for (std::size_t at = 0; at == 0 || at < text.size(); at += 65535) {
    const std::string block = text.substr(at, 65535);
    const auto length = static_cast<std::uint16_t>(block.size());
    const auto complement = static_cast<std::uint16_t>(~length);
    stream += at + block.size() >= text.size() ? '\x01' : '\x00';
    stream.append(reinterpret_cast<const char*>(&length), 2).append(reinterpret_cast<const char*>(&complement), 2);
    stream += block;
  }
  return stream;
}

TEST(InflateTest, streams_give_what_was_deflated) {
  EXPECT_EQ(inflated(kThousand, 1000).problem, "none");
  EXPECT_EQ(inflated(kThousand, 1000).text, std::string(1000, 'a'));
  EXPECT_EQ(inflated("\x03\x00"s, 0).problem, "none");
  std::string large(3'000'001, '\0');
  std::mt19937 random(1);
  for (char& byte : large) byte = static_cast<char>(random());
  const Inflated result = inflated(stored_blocks(large), large.size());
  EXPECT_EQ(result.problem, "none");
  EXPECT_TRUE(result.text == large);
}

TEST(InflateTest, streams_that_give_another_size_are_refused) {
  EXPECT_EQ(inflated(kThousand, 999).problem, "it inflates to more than its size");
  EXPECT_LE(inflated(kThousand, 999).text.size(), 999u);
  EXPECT_EQ(inflated(kThousand, 1001).problem, "it inflates to less than its size");
}

TEST(InflateTest, streams_that_end_early_or_late_are_refused) {
  for (std::size_t length = 1; length < kThousand.size() - 1; ++length) {
    EXPECT_EQ(inflated(kThousand.substr(0, length), 1000).problem, "the compressed data ends early") << length;
  }
  EXPECT_EQ(inflated("", 1000).problem, "the compressed data ends early");
  EXPECT_EQ(inflated(kThousand + "x", 1000).problem, "bytes follow the compressed data");
  EXPECT_EQ(inflated(kThousand + std::string(1'000'000, 'x'), 1000).problem, "bytes follow the compressed data");
}

TEST(InflateTest, damaged_streams_are_refused_and_never_give_more_than_asked) {
  EXPECT_EQ(inflated("\x07\x00"s, 0).problem, "the compressed data is damaged");
  for (std::size_t bit = 0; bit < 8 * kThousand.size(); ++bit) {
    std::string broken = kThousand;
    broken[bit / 8] = static_cast<char>(broken[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_LE(inflated(broken, 1000).text.size(), 1000u);
  }
}

TEST(InflateTest, a_size_that_deflate_can_not_reach_is_known) {
  EXPECT_GE(most_inflated(kThousand.size()), 1000u);
  EXPECT_EQ(most_inflated(0), 0u);
  EXPECT_EQ(most_inflated(~std::uint64_t{0}), ~std::uint64_t{0});
}

}  // namespace
}  // namespace penstock
