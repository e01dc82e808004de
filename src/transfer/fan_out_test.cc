#include "transfer/fan_out.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "testing/limits.h"

namespace penstock {
namespace {

TEST(FanOutTest, every_piece_is_done_once) {
  for (const unsigned threads : {0u, 1u, 2u, 7u}) {
    for (const std::size_t count : {0u, 1u, 3u, 1000u}) {
      std::vector<std::atomic<int>> done(count);
      fan_out(count, threads, [&](std::size_t number) { ++done[number]; });
      for (const auto& times : done) EXPECT_EQ(times, 1);
    }
  }
}

TEST(FanOutTest, the_first_error_ends_it) {
  std::atomic<int> calls{0};
  const auto work = [&](std::size_t number) {
    ++calls;
    if (number == 5) throw std::runtime_error("five");
  };
  try {
    fan_out(1'000'000, 2, work);
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "five");
  }
  EXPECT_LT(calls, 1'000'000);
}

TEST(FanOutTest, without_threads_the_caller_does_it_all) {
  const auto code = testing::run_without_threads([] {
    int done = 0;
    fan_out(10, 4, [&](std::size_t) { ++done; });
    return done;
  });
  if (!code) GTEST_SKIP() << "this process can't be kept from starting threads";
  EXPECT_EQ(*code, 10);
}

}  // namespace
}  // namespace penstock
