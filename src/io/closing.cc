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

// How many are being closed (the lower half), and in which process: a child of fork() has none of its parent's threads
// to wait for. An atomic, and no mutex: a child must be able to use it whatever the parent's threads were doing.
std::atomic<std::uint64_t> closing{0};

constexpr std::uint64_t kCountMask = 0xFFFFFFFF;

std::uint64_t count_here(std::uint64_t state) noexcept {
  return state >> 32 == static_cast<std::uint64_t>(::getpid()) ? state & kCountMask : 0;
}

void add_to_count(std::int64_t change) noexcept {
  const std::uint64_t process = static_cast<std::uint64_t>(::getpid()) << 32;
  std::uint64_t state = closing.load();
  while (!closing.compare_exchange_weak(state, process | (count_here(state) + static_cast<std::uint64_t>(change)))) {
  }
}

}  // namespace

bool frees_much(int fd) {
  constexpr std::uint64_t kUnit = 512;  // of st_blocks
  struct stat status {};
  return ::fstat(fd, &status) == 0 && static_cast<std::uint64_t>(status.st_blocks) * kUnit >= tuning::kSlowToFree;
}

bool run_while_closing(std::function<void()> work) noexcept {
  add_to_count(1);
  try {
    std::thread([mine = std::move(work)] {
      mine();
      add_to_count(-1);
    }).detach();
    return true;
  } catch (...) {
    add_to_count(-1);
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
  const auto deadline = std::chrono::steady_clock::now() + kLongestWait;
  while (count_here(closing.load()) > 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(kWaitStep);
}

}  // namespace penstock
