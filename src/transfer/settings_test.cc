#include "transfer/settings.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/bytes.h"
#include "penstock/error.h"

namespace penstock {
namespace {

class SettingsTest : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name : {"PENSTOCK_BACKEND", "PENSTOCK_BLOCK_SIZE", "PENSTOCK_QUEUE_DEPTH", "PENSTOCK_THREADS",
                             "PENSTOCK_LANDING", "PENSTOCK_MEMORY_BUDGET"}) {
      ::unsetenv(name);
    }
  }
};

TEST_F(SettingsTest, little_is_moved_on_the_calling_thread) {
  EXPECT_EQ(decide_settings({}, 1000).threads, 0u);
  EXPECT_GT(decide_settings({}, kGiB).threads, 0u);
}

TEST_F(SettingsTest, the_environment_fills_in_what_options_leave_open) {
  ::setenv("PENSTOCK_BLOCK_SIZE", "512K", 1);
  ::setenv("PENSTOCK_QUEUE_DEPTH", "3", 1);
  ::setenv("PENSTOCK_THREADS", "2", 1);
  const Settings settings = decide_settings({}, kGiB);
  EXPECT_EQ(settings.block_size, 512 * kKiB);
  EXPECT_EQ(settings.queue_depth, 3u);
  EXPECT_EQ(settings.threads, 2u);
  IoOptions options;
  options.block_size = kMiB;
  EXPECT_EQ(decide_settings(options, kGiB).block_size, kMiB);
}

TEST_F(SettingsTest, staging_is_an_eighth_of_the_memory_budget) {
  IoOptions options;
  for (const std::uint64_t budget : {64 * kMiB, 200 * kMiB, 8 * kMiB}) {
    options.memory_budget = budget;
    for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
      const Settings settings = decide_settings(options, kGiB, direction);
      EXPECT_LE(settings.staging_bytes(), budget / 8);
      EXPECT_GE(settings.queue_depth, 8u);
    }
  }
  options.memory_budget = kGiB;
  EXPECT_EQ(decide_settings(options, kGiB).staging_bytes(), 32 * kMiB);
}

TEST_F(SettingsTest, a_tiny_memory_budget_leaves_one_small_block) {
  IoOptions options;
  options.memory_budget = 1000;
  EXPECT_EQ(decide_settings(options, kGiB).staging_bytes(), 64 * kKiB);
}

TEST_F(SettingsTest, a_budget_says_where_it_comes_from) {
  EXPECT_FALSE(decide_budget({}, kGiB).asked);
  EXPECT_EQ(decide_budget({}, kMiB).bytes, MemoryBudget::kUnbounded);
  ::setenv("PENSTOCK_MEMORY_BUDGET", "100M", 1);
  EXPECT_EQ(decide_budget({}, kGiB).source, "PENSTOCK_MEMORY_BUDGET allows 100.0 MiB");
  IoOptions options;
  options.memory_budget = 7 * kMiB;
  EXPECT_EQ(decide_budget(options, kGiB).source, "memory_budget allows 7.0 MiB");
}

TEST_F(SettingsTest, nonsense_is_refused_with_the_name_of_the_variable) {
  ::setenv("PENSTOCK_QUEUE_DEPTH", "many", 1);
  try {
    decide_settings({}, kGiB);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kArgument);
    EXPECT_STREQ(error.what(), "PENSTOCK_QUEUE_DEPTH=\"many\": expected a number, such as 8 or 2M");
  }
  clear();
  ::setenv("PENSTOCK_BACKEND", "magic", 1);
  EXPECT_THROW(decide_settings({}, kGiB), Error);
  clear();
  ::setenv("PENSTOCK_LANDING", "sideways", 1);
  EXPECT_THROW(decide_landing(Landing::kAuto), Error);
  EXPECT_EQ(decide_landing(Landing::kStaged), Landing::kStaged);
}

TEST_F(SettingsTest, a_block_size_that_is_no_power_of_two_is_refused) {
  IoOptions options;
  options.block_size = 3 * kMiB;
  EXPECT_THROW(decide_settings(options, kGiB), Error);
}

TEST_F(SettingsTest, what_moves_less_has_smaller_blocks) {
  EXPECT_EQ(decide_settings({}, 5 * kMiB).block_size, 256 * kKiB);
  EXPECT_EQ(decide_settings({}, 16 * kMiB).block_size, 256 * kKiB);
  EXPECT_EQ(decide_settings({}, 100 * kMiB).block_size, 512 * kKiB);
  EXPECT_EQ(decide_settings({}, 128 * kMiB).block_size, kMiB);
  EXPECT_EQ(decide_settings({}, 256 * kMiB).block_size, 2 * kMiB);
  EXPECT_EQ(decide_settings({}, 1000 * kGiB).block_size, 2 * kMiB);
  IoOptions options;
  options.block_size = 2 * kMiB;
  EXPECT_EQ(decide_settings(options, 16 * kMiB).block_size, 2 * kMiB);
}

TEST_F(SettingsTest, devices_that_read_by_themselves_have_larger_blocks_and_more_threads) {
  const Settings settings = decide_settings({}, 10 * kGiB, Direction::kRead, Passage::kDirectStorage);
  EXPECT_EQ(settings.gds_block_size, 8 * kMiB);
  EXPECT_EQ(settings.block_size, 2 * kMiB);
  EXPECT_EQ(settings.threads, 8u);
  EXPECT_EQ(decide_settings({}, 64 * kMiB, Direction::kRead, Passage::kDirectStorage).gds_block_size, 4 * kMiB);
  EXPECT_EQ(decide_settings({}, 10 * kGiB, Direction::kRead, Passage::kDevice).gds_block_size, 0u);
  IoOptions options;
  options.block_size = 4 * kMiB;
  options.threads = 3;
  const Settings chosen = decide_settings(options, 10 * kGiB, Direction::kRead, Passage::kDirectStorage);
  EXPECT_EQ(chosen.gds_block_size, 4 * kMiB);
  EXPECT_EQ(chosen.threads, 3u);
}

TEST_F(SettingsTest, writes_have_half_as_many_in_flight) {
  EXPECT_EQ(decide_settings({}, 10 * kGiB, Direction::kRead).queue_depth, 16u);
  EXPECT_EQ(decide_settings({}, 10 * kGiB, Direction::kWrite).queue_depth, 8u);
  IoOptions options;
  options.queue_depth = 32;
  EXPECT_EQ(decide_settings(options, 10 * kGiB, Direction::kWrite).queue_depth, 32u);
}

TEST_F(SettingsTest, staging_stays_within_its_bound) {
  IoOptions options;
  options.block_size = 64 * kMiB;
  const Settings settings = decide_settings(options, 10 * kGiB);
  EXPECT_EQ(settings.queue_depth, 1u);
  for (std::uint64_t block = 64 * kKiB; block <= 32 * kMiB; block *= 2) {
    options.block_size = block;
    const Settings chosen = decide_settings(options, 10 * kGiB);
    EXPECT_LE(chosen.block_size * chosen.queue_depth, 48 * kMiB);
  }
}

}  // namespace
}  // namespace penstock
