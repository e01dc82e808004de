#include "io/closing.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "base/tuning.h"

namespace penstock {
namespace {

constexpr std::chrono::minutes kLongestWait{1};
constexpr std::chrono::milliseconds kWaitStep{5};

// Atomics, and no mutex: a child of fork() must be able to use them whatever the parent's threads were doing. The count
// is of the process that is named: a child has none of its parent's threads to wait for.
std::atomic<int> closing{0};
std::atomic<pid_t> counted_in{0};

void count_here() noexcept {
  const pid_t process = ::getpid();
  if (counted_in.exchange(process) != process) closing = 0;
}

}  // namespace

bool frees_much(int fd) {
  constexpr std::uint64_t kUnit = 512;  // of st_blocks
  struct stat status {};
  return ::fstat(fd, &status) == 0 && static_cast<std::uint64_t>(status.st_blocks) * kUnit >= tuning::kSlowToFree;
}

bool run_while_closing(std::function<void()> work) noexcept {
  count_here();
  ++closing;
  try {
    std::thread([mine = std::move(work)] {
      mine();
      --closing;
    }).detach();
    return true;
  } catch (...) {
    --closing;
    return false;
  }
}

void close_in_background(UniqueFd fd) noexcept {
  try {
    run_while_closing([last = std::make_shared<UniqueFd>(std::move(fd))] { last->reset(); });
  } catch (...) {
    // No memory: it is closed on the way out of here.
  }
}

void wait_for_closing() {
  count_here();
  const auto deadline = std::chrono::steady_clock::now() + kLongestWait;
  while (closing > 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(kWaitStep);
}

}  // namespace penstock
