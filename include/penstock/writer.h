// Writer: saves tensors as one file (or shards), atomically and durably.
//
// add() borrows the memory: it must stay valid and unchanged until commit() returns. commit() writes a temporary file
// in the target's directory, syncs it, renames it over the target and syncs the directory. Whatever goes wrong, the
// target is either the old file or the complete new one, and no temporary is left. A symbolic link at the target is
// replaced, not followed; the new file has the mode of the one it replaces, or 0666 less the umask. The space of a
// large file that was replaced is free soon after, not at once: a thread sees to that.
//
// With SaveOptions::max_shard_size the shards and their index appear as one: the shards get names that no file has, and
// the rename of the index commits them. A file or a set takes the place of whatever had its name before, which is
// removed after that: a single file, or an index with the shards that it lists. A save that is killed leaves the old
// checkpoint or the new one, whole; what else it leaves the next save of that name removes (docs/formats/sets.md).
//
// Tensors may lie on devices (penstock/device.h), on several in one file: commit() and save_async() ask whose memory
// each is. Their bytes are those after what is queued on SaveOptions::streams when these are called, or on the default
// stream of a device of which none is given, and pass through pinned memory. Memory that host and device share is read
// by the host, after the streams that are given.
//
// A Writer is used from one thread, and once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "penstock/export.h"
#include "penstock/options.h"
#include "penstock/tensor.h"

namespace PENSTOCK_EXPORT penstock {

// Produces bytes of a tensor while it is written: fills `bytes` with what lies at `offset` of its row-major form.
// Called from several threads at once, for disjoint ranges that start and end on whole elements, in no fixed order. May
// throw.
using FillFunction = std::function<void(std::uint64_t offset, std::span<std::byte> bytes)>;

class Writer {
 public:
  struct State;  // the library's own

  explicit Writer(std::filesystem::path path, SaveOptions options = {});
  Writer(Writer&&) noexcept;
  Writer& operator=(Writer&&) noexcept;
  ~Writer();

  // A contiguous tensor.
  void add(std::string name, DType dtype, Shape shape, const void* data);

  // A strided one: `byte_strides` has one entry per dimension. Not for sub-byte types.
  void add(std::string name, DType dtype, Shape shape, const void* data, std::span<const std::int64_t> byte_strides);

  // One whose bytes are produced while they are written.
  void add(std::string name, DType dtype, Shape shape, FillFunction fill);

  // Bytes of all tensors added so far.
  std::uint64_t nbytes() const noexcept;

  // Writes everything. Throws Error, with the target untouched, when anything fails.
  Stats commit();

 private:
  friend struct WriterAccess;
  std::unique_ptr<State> state_;
};

struct SaveAsyncOptions {
  // Copy the tensors to memory of the pool before anything is written, so that the caller's memory is free again soon
  // (see SaveJob::staged); the new file is made and its space reserved before that. Without a snapshot the memory is
  // borrowed until its last byte has been handed to the drive.
  bool snapshot = true;
  std::shared_ptr<MemoryPool> pool;  // for the snapshot; nothing: MemoryPool::process_default()
  // Tensors of a device are copied within it, where it has twice as much memory free as they take; else to the host.
  // Stats::reason says which, and why.
  bool on_device = false;
  // For that, where all are on one device; nothing: its driver. Called by save_async(). What it throws is no error: the
  // snapshot is on the host then.
  Allocator allocate;
};

// A save that runs in the background. Destroying an unfinished job waits for it.
class SaveJob {
 public:
  struct State;  // the library's own

  SaveJob(SaveJob&&) noexcept;
  SaveJob& operator=(SaveJob&&) noexcept;
  ~SaveJob();

  // Waits until the tensors' memory may change again. Throws what made the save fail before that.
  void staged();
  // The same with a limit; false when it is not there yet.
  bool staged_for(double seconds);

  // Waits for the end and returns what was done, or throws what went wrong (every time it is called).
  Stats wait();
  bool wait_for(double seconds);

  bool done() const noexcept;
  Progress progress() const noexcept;

  // Asks it to stop; wait() then throws Error(kCancelled), unless it had finished.
  void cancel() noexcept;

 private:
  friend SaveJob save_async(Writer writer, SaveAsyncOptions options);
  explicit SaveJob(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

// Commits `writer` in the background. Throws Error(kDevice) for what goes wrong with a device before it begins.
SaveJob save_async(Writer writer, SaveAsyncOptions options = {});

}  // namespace penstock
