// What the page cache holds of a file: cachestat(2) where the kernel has it, mincore(2) elsewhere and where cachestat
// is known to miss (overlayfs answers 0 for files that are cached). Both hide the truth from users who neither own a
// file nor may write it (cachestat refuses, mincore calls everything resident); there a few reads that must not wait
// are tried.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace penstock {

// Bytes of a range in the page cache, counted in whole pages and at most the range's size, and who said so:
// "cachestat", "mincore", "sample", or "nobody" (0 bytes) when it can't be told.
struct Residency {
  std::uint64_t nbytes = 0;
  const char* source = "nobody";
};
Residency find_residency(int fd, ByteRange range);

inline std::uint64_t resident_bytes(int fd, ByteRange range) {
  return find_residency(fd, range).nbytes;
}

// The ways, for tests; negative when the kernel refuses.
std::int64_t resident_bytes_by_cachestat(int fd, ByteRange range);
std::int64_t resident_bytes_by_mincore(int fd, ByteRange range);
std::int64_t resident_bytes_by_sample(int fd, ByteRange range);

// True when most of the memory is backed by pages already, judged by a sample. Memory that was never touched is not.
bool memory_is_resident(const std::byte* data, std::size_t nbytes);

}  // namespace penstock
