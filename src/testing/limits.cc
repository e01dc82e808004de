#include "testing/limits.h"

#include <grp.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <system_error>
#include <thread>
#include <vector>

namespace penstock::testing {
namespace {

constexpr int kNotArranged = 101;
constexpr int kThrew = 102;

// The limit counts for ordinary users alone, and all that a user runs: a root process becomes one who runs nothing
// else.
bool become_ordinary() {
  if (::geteuid() != 0) return true;
  const auto nobody_else = 2'000'000'000u + static_cast<unsigned>(::getpid());
  return ::setgroups(0, nullptr) == 0 && ::setgid(nobody_else) == 0 && ::setuid(nobody_else) == 0;
}

// How many threads can be started beside this one, up to `most`.
unsigned count_threads(unsigned most) {
  std::promise<void> enough;
  const std::shared_future<void> end = enough.get_future().share();
  std::vector<std::thread> threads;
  try {
    while (threads.size() < most) threads.emplace_back([end] { end.wait(); });
  } catch (const std::system_error&) {
  }
  enough.set_value();
  for (std::thread& thread : threads) thread.join();
  return static_cast<unsigned>(threads.size());
}

bool allow_threads(unsigned count) {
  const rlimit limit{count + 1, count + 1};
  return become_ordinary() && ::setrlimit(RLIMIT_NPROC, &limit) == 0 && count_threads(count + 1) == count;
}

int run_child(unsigned threads, const std::function<int()>& action) noexcept {
  try {
    return allow_threads(threads) ? action() : kNotArranged;
  } catch (...) {
    return kThrew;
  }
}

}  // namespace

std::optional<int> run_with_threads(unsigned count, const std::function<int()>& action) {
  const pid_t child = ::fork();
  if (child < 0) return std::nullopt;
  if (child == 0) ::_exit(run_child(count, action));
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return kThrew;
  if (WEXITSTATUS(status) == kNotArranged) return std::nullopt;
  return WEXITSTATUS(status);
}

}  // namespace penstock::testing
