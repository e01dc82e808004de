#include "units.h"

#include <gtest/gtest.h>

namespace penstock::cli {
namespace {

TEST(Units, round_sizes_have_no_decimal) {
  EXPECT_EQ(format_round_size(4 * kMiB), "4 MiB");
  EXPECT_EQ(format_round_size(512 * kKiB), "512 KiB");
  EXPECT_EQ(format_round_size(3 * kGiB / 2), "1.5 GiB");
  EXPECT_EQ(format_round_size(7), "7 B");
  EXPECT_EQ(format_round_size(kMiB - 1), "1.0 MiB");
}

TEST(Units, rates_divide_bytes_by_seconds) {
  EXPECT_EQ(format_rate(3 * kGiB, 2), "1.50 GiB/s");
  EXPECT_EQ(format_rate(kGiB, 0), "0.00 GiB/s");
}

TEST(Units, counts_are_grouped_by_thousands) {
  EXPECT_EQ(format_count(7), "7");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(1100048384), "1,100,048,384");
  EXPECT_EQ(format_count_of(1, "tensor"), "1 tensor");
  EXPECT_EQ(format_count_of(0, "tensor"), "0 tensors");
}

TEST(Units, durations_choose_their_unit) {
  EXPECT_EQ(format_seconds(0.0123), "12 ms");
  EXPECT_EQ(format_seconds(0.9999), "1.0 s");
  EXPECT_EQ(format_seconds(12.34), "12.3 s");
  EXPECT_EQ(format_seconds(245), "4:05");
  EXPECT_EQ(format_clock(6.2), "0:07");
  EXPECT_EQ(format_clock(3723), "1:02:03");
}

}  // namespace
}  // namespace penstock::cli
