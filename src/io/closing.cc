#include "io/closing.h"

#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "base/bytes.h"
#include "base/later.h"

namespace penstock {
namespace {

constexpr std::uint64_t kMuch = 128 * kMiB;
constexpr std::chrono::minutes kLongestWait{1};

}  // namespace

bool frees_much(int fd) {
  constexpr std::uint64_t kUnit = 512;  // of st_blocks
  struct stat status {};
  return ::fstat(fd, &status) == 0 && static_cast<std::uint64_t>(status.st_blocks) * kUnit >= kMuch;
}

void close_in_background(UniqueFd fd) noexcept {
  try {
    const auto last = std::make_shared<UniqueFd>(std::move(fd));
    do_later(Chore::kClosing, Clock::now(), [last] { last->reset(); });
  } catch (...) {
    // No thread, or no memory: it is closed on the way out of here.
  }
}

void wait_for_closing() {
  wait_for(Chore::kClosing, kLongestWait);
}

}  // namespace penstock
