// The size of a page of memory: 4 KiB on most machines, 16 or 64 KiB on some; of a transparent huge page; and of a line
// of the processor's cache.
#pragma once

#include <unistd.h>

#include <cstdint>

namespace penstock {

inline constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
inline constexpr std::uint64_t kCacheLine = 64;

inline std::uint64_t page_size() noexcept {
  static const auto size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace penstock
