#include "memory/budget.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/fork.h"
#include "memory/arena.h"
#include "penstock/size.h"

namespace penstock {
namespace {

std::uint64_t less(std::uint64_t from, std::uint64_t nbytes) {
  return from - std::min(from, nbytes);
}

// All claims of the process. What was claimed is taken little by little, and both can't be subtracted: what is left is
// what was left when there was no claim, without all claims since; or what is left now, if that is less.
class Claims {
 public:
  std::uint64_t left() {
    const std::uint64_t now = available_memory();
    const std::lock_guard lock(process_mutex());
    return left_of(now);
  }

  bool add(std::uint64_t nbytes) {
    const std::uint64_t now = available_memory();
    const std::lock_guard lock(process_mutex());
    if (nbytes > left_of(now)) return false;
    claimed_ += nbytes;
    return true;
  }

  void remove(std::uint64_t nbytes) {
    const std::lock_guard lock(process_mutex());
    forget_parents();
    claimed_ = less(claimed_, nbytes);
    at_first_ = less(at_first_, nbytes);
  }

 private:
  // Claims of other threads are not there after fork(), and nobody would let go of them.
  void forget_parents() {
    if (std::exchange(forks_, fork_count()) != fork_count()) claimed_ = 0;
  }

  std::uint64_t left_of(std::uint64_t now) {
    forget_parents();
    if (claimed_ == 0) at_first_ = now;
    return std::min(now, less(at_first_, claimed_));
  }

  std::uint64_t forks_ = 0;
  std::uint64_t claimed_ = 0;
  std::uint64_t at_first_ = 0;
};

constinit Claims claims;

}  // namespace

MemoryClaim::~MemoryClaim() {
  if (nbytes_ > 0) claims.remove(nbytes_);
}

std::optional<MemoryClaim> MemoryBudget::claim(std::uint64_t nbytes) const {
  if (nbytes > bytes) return std::nullopt;
  if (asked || bytes == kUnbounded) return MemoryClaim();
  if (!claims.add(nbytes)) return std::nullopt;
  return MemoryClaim(nbytes);
}

MemoryClaim MemoryBudget::require(std::string_view path, std::string_view what, std::uint64_t tensors,
                                  std::uint64_t blocks, std::string_view advice) const {
  const std::uint64_t both = blocks <= kUnbounded - tensors ? tensors + blocks : kUnbounded;
  if (auto granted = claim(both)) return std::move(*granted);
  throw Error(ErrorKind::kMemory, fmt::format("{}: {} takes {} of memory and {} of blocks, and {}: {}", path, what,
                                              format_size(tensors), format_size(blocks), source, advice));
}

MemoryBudget asked_budget(std::uint64_t nbytes, std::string_view name) {
  return {nbytes, true, fmt::format("{} allows {}", name, format_size(nbytes))};
}

MemoryBudget remaining_memory() {
  const std::uint64_t left = claims.left();
  const std::uint64_t limit = memory_limit();
  return {left, false,
          fmt::format("{} are left of the {} of {}", format_size(left), format_size(limit),
                      limit < physical_memory() ? "this process's cgroup" : "this machine")};
}

}  // namespace penstock
