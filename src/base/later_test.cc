#include "base/later.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

TEST(LaterTest, work_is_done_in_the_order_of_its_time) {
  std::latch all_there(1);
  std::vector<int> done;
  const auto now = Clock::now();
  do_later(Chore::kClosing, now, [&] { all_there.wait(); });
  do_later(Chore::kClosing, now + milliseconds(60), [&] { done.push_back(3); });
  do_later(Chore::kClosing, now + milliseconds(30), [&] { done.push_back(2); });
  do_later(Chore::kClosing, now + milliseconds(1), [&] { done.push_back(1); });
  all_there.count_down();
  EXPECT_TRUE(wait_for(Chore::kClosing, minutes(1)));
  EXPECT_EQ(done, (std::vector{1, 2, 3}));
  EXPECT_GE(Clock::now(), now + milliseconds(60));
}

TEST(LaterTest, one_kind_is_not_waited_for_with_another) {
  const auto held = std::make_shared<int>();
  do_later(Chore::kCooling, Clock::now() + seconds(2), [held] {});
  std::atomic<bool> done = false;
  do_later(Chore::kClosing, Clock::now(), [&] { done = true; });
  EXPECT_TRUE(wait_for(Chore::kClosing, minutes(1)));
  EXPECT_TRUE(done);
  EXPECT_FALSE(wait_for(Chore::kCooling, seconds(0)));
  EXPECT_TRUE(wait_for(Chore::kCooling, minutes(1)));
  EXPECT_EQ(held.use_count(), 1);
}

TEST(LaterTest, a_thread_starts_again_after_the_last_has_ended) {
  for (int i = 0; i < 100; ++i) {
    std::atomic<bool> done = false;
    do_later(Chore::kClosing, Clock::now(), [&] { done = true; });
    ASSERT_TRUE(wait_for(Chore::kClosing, minutes(1)));
    EXPECT_TRUE(done);
    if (i % 10 == 0) std::this_thread::sleep_for(milliseconds(1));
  }
}

#ifndef __SANITIZE_THREAD__  // which lets no child of a process with threads start one

// Its parent's thread waits for the time of something when the process is forked.
TEST(LaterTest, a_child_drops_its_parents_work_and_does_its_own) {
  const auto held = std::make_shared<int>();
  std::atomic<bool> done = false;
  do_later(Chore::kCooling, Clock::now() + seconds(1), [held, &done] { done = true; });
  std::this_thread::sleep_for(milliseconds(20));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    bool right = held.use_count() == 1 && wait_for(Chore::kCooling, minutes(1));
    for (int i = 0; i < 10; ++i) {
      std::atomic<bool> own = false;
      do_later(Chore::kCooling, Clock::now() + milliseconds(i), [&] { own = true; });
      right = right && wait_for(Chore::kCooling, minutes(1)) && own;
    }
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(wait_for(Chore::kCooling, minutes(1)));
  EXPECT_TRUE(done);
}

#endif

}  // namespace
}  // namespace penstock
