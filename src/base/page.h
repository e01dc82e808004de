// The size of a page of memory: 4 KiB on most machines, 16 or 64 KiB on some.
#pragma once

#include <unistd.h>

#include <cstdint>

namespace penstock {

inline std::uint64_t page_size() noexcept {
  static const auto size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace penstock
