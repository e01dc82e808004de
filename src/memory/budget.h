// MemoryBudget: what one load or save may take of the host's memory, and how to say that it is too little.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace penstock {

// Memory that somebody is about to take: others, who ask what is left, don't count on it. Held until it was taken.
class MemoryClaim {
 public:
  MemoryClaim() = default;
  explicit MemoryClaim(std::uint64_t nbytes) noexcept : nbytes_(nbytes) {}
  MemoryClaim(MemoryClaim&& other) noexcept : nbytes_(std::exchange(other.nbytes_, 0)) {}
  MemoryClaim& operator=(MemoryClaim&& other) noexcept {
    std::swap(nbytes_, other.nbytes_);
    return *this;
  }
  ~MemoryClaim();

 private:
  std::uint64_t nbytes_ = 0;
};

struct MemoryBudget {
  static constexpr std::uint64_t kUnbounded = ~std::uint64_t{0};

  std::uint64_t bytes = kUnbounded;
  bool asked = false;  // the caller's choice; else it is all that is left, of which others take too
  std::string source;  // "memory_budget allows 100.0 MiB"; empty where there is no bound

  // Nothing where there is no room.
  std::optional<MemoryClaim> claim(std::uint64_t nbytes) const;

  // The same for `tensors` and the blocks that bytes pass through. Throws Error(kMemory) where there is no room: `path`
  // and `what`, such as "a load", begin the sentence, `advice` ends it.
  MemoryClaim require(std::string_view path, std::string_view what, std::uint64_t tensors, std::uint64_t blocks,
                      std::string_view advice) const;
};

// What `name` allows.
MemoryBudget asked_budget(std::uint64_t nbytes, std::string_view name);

// What the machine and the cgroups of this process leave now.
MemoryBudget remaining_memory();

}  // namespace penstock
