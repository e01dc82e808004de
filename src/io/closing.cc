#include "io/closing.h"

#include <pthread.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>

#include "base/bytes.h"

namespace penstock {
namespace {

constexpr std::uint64_t kMuch = 128 * kMiB;

std::atomic<int> under_way{0};

void one_is_closed() noexcept {
  --under_way;
  under_way.notify_all();
}

// A forked child has none of its parent's threads.
void forget_in_children() {
  [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, [] { under_way = 0; });
}

}  // namespace

bool frees_much(int fd) {
  constexpr std::uint64_t kUnit = 512;  // of st_blocks
  struct stat status {};
  return ::fstat(fd, &status) == 0 && static_cast<std::uint64_t>(status.st_blocks) * kUnit >= kMuch;
}

void close_in_background(UniqueFd fd) {
  forget_in_children();
  ++under_way;
  try {
    std::thread([closed_here = std::move(fd)]() mutable {
      closed_here.reset();
      one_is_closed();
    }).detach();
  } catch (const std::system_error&) {
    one_is_closed();  // it is closed already: the function that held it is gone
  }
}

void wait_for_closing() {
  for (int left = under_way; left > 0; left = under_way) under_way.wait(left);
}

}  // namespace penstock
