// What a drive can do: the ceilings that `penstock bench` compares with, by default and with other settings.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "penstock/export.h"
#include "penstock/options.h"

namespace PENSTOCK_EXPORT penstock {

struct Throughput {
  std::uint64_t bytes = 0;
  double seconds = 0;
  std::string method;   // "direct", "buffered"
  std::string backend;  // "uring", "threads"
};

// Reads `path` (at most `max_bytes` of it) directly into recycled memory and throws the bytes away: the ceiling of a
// load.
Throughput measure_read(const std::filesystem::path& path, const IoOptions& io, std::uint64_t max_bytes);

// Writes a temporary file of `nbytes` in `directory` durably out of a few MiB that are in memory, and removes it: the
// ceiling of a save.
Throughput measure_write(const std::filesystem::path& directory, const IoOptions& io, WriteMethod method,
                         std::uint64_t nbytes);

// Drops a file's clean pages from the page cache (after syncing it), so that the next read is cold.
void drop_page_cache(const std::filesystem::path& path);

// Names of the backends that work on this machine, best first.
std::string available_backends();

}  // namespace penstock
