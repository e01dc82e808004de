#include "format/checksums.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

using Checksums = std::vector<std::uint32_t>;

TEST(Checksums, are_eight_lower_case_digits_each) {
  EXPECT_EQ(encode_checksums(Checksums{0xE3069283, 0, 0xABCDEF}), "e30692830000000000abcdef");
  EXPECT_EQ(encode_checksums({}), "");
}

TEST(Checksums, what_was_encoded_is_parsed_back) {
  const Checksums checksums = {0, 1, 0xFFFFFFFF, 0x12345678, 0xE3069283};
  EXPECT_EQ(parse_checksums(encode_checksums(checksums), checksums.size()), checksums);
  EXPECT_EQ(parse_checksums("", 0), Checksums{});
}

TEST(Checksums, another_count_than_expected_is_nothing) {
  EXPECT_FALSE(parse_checksums("e3069283", 0));
  EXPECT_FALSE(parse_checksums("e3069283", 2));
  EXPECT_FALSE(parse_checksums("e306928", 1));
  EXPECT_FALSE(parse_checksums("e30692830", 1));
  EXPECT_FALSE(parse_checksums("", 1));
}

TEST(Checksums, other_characters_are_nothing) {
  EXPECT_FALSE(parse_checksums("E3069283", 1));
  EXPECT_FALSE(parse_checksums("e306928g", 1));
  EXPECT_FALSE(parse_checksums(" 3069283", 1));
  EXPECT_FALSE(parse_checksums("+3069283", 1));
  EXPECT_FALSE(parse_checksums("0x069283", 1));
}

}  // namespace
}  // namespace penstock
