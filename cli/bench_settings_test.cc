#include "bench_settings.h"

#include <gtest/gtest.h>

#include "units.h"

namespace penstock::cli {
namespace {

bool is_default(const IoOptions& io) {
  return io.block_size == 0;
}

// A drive that is faster with every thread and every request in flight; the defaults make `default_seconds` of a GiB.
auto drive_with(double default_seconds) {
  return [=](Setting& setting) {
    const IoOptions& io = setting.io;
    setting.measurement.add(kGiB, is_default(io) ? default_seconds : 1.0 / (io.queue_depth + io.threads));
  };
}

bool always() {
  return true;
}

TEST(BenchSettings, the_fastest_combination_is_found_and_compared_with_the_defaults) {
  const SettingsTable table = measure_settings(4, 2, drive_with(1), always);
  EXPECT_EQ(format_setting(table.best.io), "1 MiB x 32 on 4 threads");
  EXPECT_TRUE(table.best_is_faster());
  EXPECT_FALSE(measure_settings(4, 2, drive_with(1.0 / 36), always).best_is_faster());
}

TEST(BenchSettings, a_combination_within_the_spread_of_the_defaults_is_not_faster) {
  int runs = 0;
  const auto measure = [&](Setting& setting) {
    // One of the five runs of the defaults is as fast as the best.
    setting.measurement.add(kGiB, is_default(setting.io) && ++runs != 3 ? 1.0 : 0.5);
  };
  EXPECT_FALSE(measure_settings(1, 1, measure, always).best_is_faster());
}

TEST(BenchSettings, a_combination_that_was_lucky_once_is_not_faster) {
  const auto measure = [](Setting& setting) {
    const bool lucky = setting.io.queue_depth == 8 && setting.measurement.count() == 0;
    setting.measurement.add(kGiB, lucky ? 0.1 : 1.0);
  };
  const SettingsTable table = measure_settings(1, 1, measure, always);
  EXPECT_EQ(table.best.io.queue_depth, 8);
  EXPECT_FALSE(table.best_is_faster());
}

TEST(BenchSettings, what_there_is_no_time_for_is_not_measured) {
  int left = 7;
  const SettingsTable table = measure_settings(2, 3, drive_with(1), [&] { return left-- > 0; });
  EXPECT_EQ(table.cells[6].measurement.count(), 1);
  EXPECT_EQ(table.cells[7].measurement.count(), 0);
  EXPECT_EQ(table.best.measurement.count(), table.defaults.measurement.count());
}

TEST(BenchSettings, combinations_stay_within_the_memory_that_a_load_may_take) {
  const SettingsTable table = measure_settings(64, 1, drive_with(1), always);
  for (const Setting& setting : table.cells) {
    EXPECT_LE(setting.io.block_size * setting.io.queue_depth, 48 * kMiB);
    EXPECT_LE(setting.io.threads, setting.io.queue_depth);
  }
}

TEST(BenchSettings, a_setting_is_told_to_people_and_to_the_shell) {
  const IoOptions io{.block_size = 2 * kMiB, .queue_depth = 8, .threads = 1};
  EXPECT_EQ(format_setting(io), "2 MiB x 8 on 1 thread");
  EXPECT_EQ(environment_for(io), "PENSTOCK_BLOCK_SIZE=2M PENSTOCK_QUEUE_DEPTH=8 PENSTOCK_THREADS=1");
}

}  // namespace
}  // namespace penstock::cli
