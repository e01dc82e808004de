#include "base/fork.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/error.h"

namespace penstock {
namespace {

// What a child of fork() gives back; 99 when it does not end by itself within a minute.
template <typename Child>
int status_of(const Child& child) {
  const pid_t process = ::fork();
  if (process == 0) {
    ::alarm(60);
    ::_exit(child());
  }
  int status = 0;
  ::waitpid(process, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

TEST(Fork, ProcessMutexIsFreeInAChildWhoeverHeldIt) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> holders;
  for (int i = 0; i < 2; ++i) {
    holders.emplace_back([&] {
      while (!stop) const std::lock_guard lock(process_mutex());
    });
  }
  int hung = 0;
  for (int i = 0; i < 200; ++i) {
    hung += status_of([] {
      const std::lock_guard lock(process_mutex());
      return 0;
    });
  }
  stop = true;
  for (std::thread& holder : holders) holder.join();
  EXPECT_EQ(hung, 0);
}

TEST(Fork, IsCountedInTheChildAlone) {
  const std::uint64_t before = fork_count();
  EXPECT_EQ(status_of([&] { return static_cast<int>(fork_count() - before); }), 1);
  EXPECT_EQ(fork_count(), before);
}

TEST(PerProcess, ChildHasOneOfItsOwn) {
  PerProcess<int> value;
  value.get() = 7;
  EXPECT_EQ(status_of([&] { return value.get(); }), 0);
  EXPECT_EQ(value.get(), 7);
}

TEST(PerProcess, LockThatIsHeldIsFreeInAChild) {
  PerProcess<std::mutex> mutex;
  const std::lock_guard lock(mutex.get());
  EXPECT_EQ(status_of([&] { return mutex.get().try_lock() ? 0 : 1; }), 0);
}

TEST(MadeOnce, KeepsWhatWasMadeFirst) {
  const MadeOnce<int> made;
  EXPECT_EQ(made.get([] { return 1; }), 1);
  EXPECT_EQ(made.get([] { return 2; }), 1);
  EXPECT_EQ(status_of([&] { return made.get([] { return 3; }); }), 1);
}

TEST(MadeOnce, IsMadeAgainAfterAnError) {
  const MadeOnce<int> made;
  EXPECT_THROW(made.get([]() -> int { throw_argument("not yet"); }), Error);
  EXPECT_EQ(made.get([] { return 2; }), 2);
}

TEST(MadeOnce, IsOneForAllThreads) {
  const MadeOnce<int> made;
  std::vector<const int*> found(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back([&, i] { found[i] = &made.get([&] { return static_cast<int>(i); }); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int* each : found) EXPECT_EQ(each, found[0]);
}

TEST(OfThisProcess, IsNotDestroyedInAChild) {
  struct Speaking {
    explicit Speaking(bool* to) : destroyed(to) {}
    ~Speaking() { *destroyed = true; }
    bool* destroyed;
  };
  bool destroyed = false;
  std::shared_ptr<Speaking> owned = of_this_process(std::make_unique<Speaking>(&destroyed));
  EXPECT_EQ(status_of([&] {
              owned.reset();
              return destroyed ? 1 : 0;
            }),
            0);
  owned.reset();
  EXPECT_TRUE(destroyed);
}

TEST(OfThisProcess, IsRefusedToAChildByName) {
  const std::uint64_t forks = fork_count();
  require_own_process(forks, "the save");
  EXPECT_EQ(status_of([&] {
              try {
                require_own_process(forks, "the save");
              } catch (const Error& error) {
                const std::string_view expected = "the save belongs to the process that this one was forked from";
                return error.kind() == ErrorKind::kArgument && error.what() == expected ? 0 : 1;
              }
              return 2;
            }),
            0);
}

}  // namespace
}  // namespace penstock
