// StreamFile: a file that is written from front to back, at the speed of the drive, when its size is not known before.
//
// append() copies into staging blocks; full ones are written in the background while the next is filled. finish()
// writes the rest, syncs, and only then gives the file its name: until then the path is what it was, and whatever goes
// wrong leaves it so. The new file has the mode of the one it replaces, or 0666 less the umask.
//
// An error of a write that runs in the background comes out of the next append(), flush() or finish(), with the path
// and the offset, and out of every call after that; the data is gone by then. Destroying a StreamFile that is not
// finished abandons it.
//
// Used by one thread at a time, not necessarily the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "penstock/export.h"
#include "penstock/options.h"

namespace PENSTOCK_EXPORT penstock {

struct StreamOptions {
  // How safe. Without `durable` the file still appears whole, but may be lost in a power cut.
  bool durable = true;

  // How fast.
  WriteMethod method = WriteMethod::kAuto;
  bool overlap = true;            // false: one staging block, so a write is waited for before the next is filled
  std::uint64_t max_staging = 0;  // bytes of staging blocks at most; 0: as many as requests may be in flight
  IoOptions io;
};

struct StreamStats {
  std::uint64_t bytes = 0;          // appended
  std::uint64_t bytes_written = 0;  // of these, written in the background
  std::uint64_t bytes_slow = 0;     // of these, written at the end through the page cache: a file of less than a block
  std::uint64_t writes = 0;         // background writes
  std::uint64_t fills = 0;          // copies into staging blocks
  double fill_seconds = 0;          // spent on them, over all threads
  double write_seconds = 0;         // with at least one background write under way
  double slow_seconds = 0;
  double sync_seconds = 0;
  double seconds = 0;   // since it was opened, until it was finished
  std::string path;     // "direct" or "buffered"; empty while nothing was written
  std::string backend;  // "uring", "threads" or "inline"; empty while nothing was written in the background
};

class StreamFile {
 public:
  class State;  // the library's own

  // Throws Error when the file can't be made there.
  explicit StreamFile(const std::filesystem::path& path, const StreamOptions& options = {});
  explicit StreamFile(std::unique_ptr<State> state);
  StreamFile(StreamFile&&) noexcept;
  StreamFile& operator=(StreamFile&&) noexcept;
  ~StreamFile();

  // The memory is free again when this returns. Memory of a device is fetched through pinned blocks, after what is
  // queued on its default stream.
  void append(const void* data, std::size_t nbytes);

  // Says that this many bytes more are going to come, so that a full disk is met now: throws Error(kNoSpace).
  void reserve(std::uint64_t nbytes);

  // Waits until the full blocks so far are written. Less than a block stays in memory.
  void flush();

  // Writes the rest and gives the file its name. Again: does nothing.
  void finish();

  // Leaves everything as it was.
  void abandon() noexcept;

  // Bytes appended so far.
  std::uint64_t size() const noexcept;
  // Bytes that can be appended without waiting for anything.
  std::size_t room() const noexcept;
  const std::string& path() const noexcept;
  StreamStats stats() const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace penstock
