#include "penstock/size.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace penstock {
namespace {

TEST(ParseSize, letters_alone_and_ib_are_powers_of_1024) {
  EXPECT_EQ(parse_size("3K"), 3 * kKiB);
  EXPECT_EQ(parse_size("64M"), 64 * kMiB);
  EXPECT_EQ(parse_size("5G"), 5 * kGiB);
  EXPECT_EQ(parse_size("5GiB"), 5 * kGiB);
  EXPECT_EQ(parse_size("2TiB"), 2048 * kGiB);
  EXPECT_EQ(parse_size("7E"), std::uint64_t{7} << 60);
}

TEST(ParseSize, units_that_end_in_b_alone_are_powers_of_1000) {
  EXPECT_EQ(parse_size("1KB"), 1000);
  EXPECT_EQ(parse_size("5GB"), 5'000'000'000);
  EXPECT_EQ(parse_size("9EB"), 9'000'000'000'000'000'000);
}

TEST(ParseSize, bytes_need_no_unit) {
  EXPECT_EQ(parse_size("0"), 0);
  EXPECT_EQ(parse_size("4096"), 4096);
  EXPECT_EQ(parse_size("17b"), 17);
  EXPECT_EQ(parse_size("9007199254740993"), 9007199254740993);  // a double would round it
  EXPECT_EQ(parse_size("9223372036854775807"), 9223372036854775807);
}

TEST(ParseSize, case_and_spaces_do_not_matter) {
  EXPECT_EQ(parse_size("64 mib"), 64 * kMiB);
  EXPECT_EQ(parse_size(" 64 MIB\t"), 64 * kMiB);
  EXPECT_EQ(parse_size("5gb"), 5'000'000'000);
}

TEST(ParseSize, a_fraction_of_a_unit_is_rounded_to_bytes) {
  EXPECT_EQ(parse_size("1.5k"), 1536);
  EXPECT_EQ(parse_size("0.1K"), 102);
  EXPECT_EQ(parse_size("2.5GB"), 2'500'000'000);
}

TEST(ParseSize, what_is_not_a_size_is_refused) {
  for (const char* text : {"",    " ",   "-1",   "+1", "GB",  "iB",  "5XB",  "5iB",  "5GBs", "1e3",   "9e9",
                           "nan", "inf", "0x10", "1.", ".5K", "1.5", "1.5B", "1,5K", "5G B", "5 G 5", "5K\xFF"}) {
    EXPECT_EQ(parse_size(text), std::nullopt) << text;
  }
}

TEST(ParseSize, what_does_not_fit_is_refused) {
  for (const char* text :
       {"9223372036854775808", "8E", "8.5E", "99999999TB", "99999999999E", "99999999999999999999999"}) {
    EXPECT_EQ(parse_size(text), std::nullopt) << text;
  }
}

TEST(FormatSize, sizes_are_shown_with_one_decimal_and_binary_units) {
  EXPECT_EQ(format_size(0), "0 B");
  EXPECT_EQ(format_size(1023), "1023 B");
  EXPECT_EQ(format_size(1024), "1.0 KiB");
  EXPECT_EQ(format_size(1536), "1.5 KiB");
  EXPECT_EQ(format_size(kMiB - 1), "1.0 MiB");
  EXPECT_EQ(format_size(2 * kGiB + kGiB / 2), "2.5 GiB");
  EXPECT_EQ(format_size(~std::uint64_t{0}), "16.0 EiB");
}

}  // namespace
}  // namespace penstock
