#include "sweep.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "units.h"

namespace penstock::cli {
namespace {

std::vector<Setting> settings_with_depths(unsigned count) {
  std::vector<Setting> settings(count);
  for (unsigned i = 0; i < count; ++i) settings[i].io.queue_depth = i;
  settings[0].is_default = true;
  return settings;
}

// A drive that is the faster the deeper the queue.
void measure_by_depth(SweepEntry& entry) {
  entry.measurement.add(kGiB, 1.0 / (1 + entry.setting.io.queue_depth));
}

TEST(Sweep, the_fastest_setting_wins_and_the_default_stays) {
  Sweep sweep(settings_with_depths(40));
  sweep.run(measure_by_depth, [] { return true; });
  const auto ranking = sweep.ranking();
  ASSERT_EQ(ranking.size(), Sweep::kFinalists);
  EXPECT_EQ(ranking.front().setting.io.queue_depth, 39);
  EXPECT_TRUE(ranking.back().setting.is_default);
  EXPECT_TRUE(sweep.is_complete());
}

TEST(Sweep, finalists_are_measured_often_and_losers_once) {
  Sweep sweep(settings_with_depths(40));
  std::vector<int> counts(40);
  sweep.run(
      [&](SweepEntry& entry) {
        ++counts[entry.setting.io.queue_depth];
        measure_by_depth(entry);
      },
      [] { return true; });
  EXPECT_EQ(counts[39], static_cast<int>(Sweep::kMeasurements));
  EXPECT_EQ(counts[1], 1);
}

TEST(Sweep, it_ends_when_time_is_up) {
  Sweep sweep(settings_with_depths(40));
  int left = 7;
  sweep.run(measure_by_depth, [&] { return left-- > 0; });
  EXPECT_EQ(sweep.ranking().size(), 7);
  EXPECT_FALSE(sweep.is_complete());
}

TEST(Sweep, a_setting_that_moves_nothing_is_not_ranked) {
  Sweep sweep(settings_with_depths(3));
  sweep.run(
      [](SweepEntry& entry) {
        entry.setting.io.queue_depth == 1 ? entry.measurement.add(0, 1) : measure_by_depth(entry);
      },
      [] { return true; });
  const auto ranking = sweep.ranking();
  EXPECT_EQ(ranking.size(), 2);
  EXPECT_EQ(ranking.front().setting.io.queue_depth, 2);
}

TEST(Sweep, settings_stay_within_the_memory_that_a_load_may_take) {
  for (const Setting& setting : read_settings({Backend::kUring, Backend::kThreads})) {
    EXPECT_LE(setting.io.block_size * setting.io.queue_depth, 48 * kMiB);
  }
  const auto settings = write_settings();
  EXPECT_TRUE(settings.front().is_default);
  EXPECT_EQ(std::count_if(settings.begin(), settings.end(), [](const Setting& s) { return s.is_default; }), 1);
}

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
