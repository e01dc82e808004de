// AioHandle: reads and writes of plain files from and into memory of the caller, several at a time and in the
// background.
//
// An operation is split into blocks; `queue_depth` of them are in flight on each of `intra_op_parallelism` threads.
// Bytes go past the page cache where the filesystem, the offset and the address allow it, and through it elsewhere.
// Memory at a multiple of 4096 (LockedMemory is) and offsets at one do.
//
// Every completion is looked at and short ones are resumed: what wait() counts has moved all its bytes. Nothing is
// synced; for a file that must survive a power cut, and appear whole or not at all, there is StreamFile.
//
// Safe from several threads. The order of operations that are under way together is open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "penstock/export.h"
#include "penstock/options.h"

namespace PENSTOCK_EXPORT penstock {

struct AioOptions {
  std::size_t block_size = std::size_t{1} << 20;
  unsigned queue_depth = 128;         // per thread
  bool single_submit = false;         // kept for callers that ask: requests are always submitted one by one
  bool overlap_events = false;        // kept for callers that ask: completions are always reaped as they come
  unsigned intra_op_parallelism = 1;  // threads
  Backend backend = Backend::kAuto;
};

// The memory of an operation: `nbytes` at `data`, valid until the operation was waited for. `owner` (optional) is held
// until then. Memory of a device will do: all of it is on the host too while the operation takes, fetched when a write
// is started, or sent when a read is waited for, each after what is queued on the device's default stream.
struct AioMemory {
  void* data = nullptr;
  std::size_t nbytes = 0;
  std::shared_ptr<const void> owner;
};

// Where in which file. Without an offset a write makes a whole file of its memory: an older, longer one is cut. With
// one, 0 included, the bytes around it stay. A descriptor may stand for a path; it is not closed.
struct AioPlace {
  std::filesystem::path path;
  std::optional<std::uint64_t> offset;
  int fd = -1;            // in place of the path
  bool validate = false;  // read the bytes again through the page cache when they have arrived, and compare
};

class AioHandle {
 public:
  class State;  // the library's own

  explicit AioHandle(const AioOptions& options = {});
  explicit AioHandle(std::unique_ptr<State> state);
  AioHandle(AioHandle&&) noexcept;
  AioHandle& operator=(AioHandle&&) noexcept;
  // Waits for what is under way.
  ~AioHandle();

  const AioOptions& options() const noexcept;

  // The size whose multiples can be split evenly over the threads, in sectors.
  std::size_t alignment() const noexcept;

  // Until all bytes have moved. Others under way are not waited for. Throw Error.
  void read(const AioMemory& memory, const AioPlace& place);
  void write(const AioMemory& memory, const AioPlace& place);

  // In the background. Throw Error when the file can't be opened, or ends before what is to be read.
  void start_read(const AioMemory& memory, const AioPlace& place);
  void start_write(const AioMemory& memory, const AioPlace& place);

  // Waits for all that were started and returns how many they were. Throws the first one's error when some failed; all
  // are over then.
  std::size_t wait();
  // True when they are over, waiting at most so long. wait() must follow.
  bool wait_for(double seconds);

  // Operations that were started and not waited for.
  std::size_t pending() const;

 private:
  std::shared_ptr<State> state_;
};

// Memory at a multiple of the page size, locked against swapping where the system allows so much of it.
struct LockedMemory {
  std::shared_ptr<void> owner;
  std::byte* data = nullptr;
  std::size_t nbytes = 0;
  bool locked = false;
};

// Zeroed. Throws Error(kMemory).
LockedMemory allocate_locked(std::size_t nbytes);

}  // namespace penstock
