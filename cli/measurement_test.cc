#include "measurement.h"

#include <gtest/gtest.h>

#include "units.h"

namespace penstock::cli {
namespace {

TEST(Measurement, the_median_is_the_middle_or_the_mean_of_the_two) {
  Measurement measurement;
  EXPECT_EQ(measurement.median(), 0);
  measurement.add(3 * kGiB, 1);
  measurement.add(1 * kGiB, 1);
  EXPECT_EQ(measurement.median(), 2);
  measurement.add(8 * kGiB, 1);
  EXPECT_EQ(measurement.median(), 3);
  EXPECT_EQ(measurement.range(), "1.00 - 8.00");
}

}  // namespace
}  // namespace penstock::cli
