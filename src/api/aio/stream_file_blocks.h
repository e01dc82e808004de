// StreamBlocks: the staging blocks of a StreamFile, the writes of them that are under way, and the first error among
// those.
//
// Shared by the file, which takes and fills blocks, and the jobs of its crew, which write them and give them back. Safe
// from several threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memory/arena.h"
#include "transfer/crew.h"
#include "transfer/progress.h"
#include "transfer/write.h"

namespace penstock {

// One block on its way to the file.
struct StreamWrite {
  std::byte* block = nullptr;
  const std::byte* source = nullptr;  // memory to copy into the block first; null: it is filled
  std::uint64_t offset = 0;
  std::uint64_t payload = 0;  // bytes of the file
  std::uint64_t length = 0;   // bytes written: rounded up for direct I/O
};

class StreamBlocks : public std::enable_shared_from_this<StreamBlocks> {
 public:
  struct Counts {
    std::uint64_t bytes_written = 0;
    std::uint64_t writes = 0;
    std::uint64_t fills = 0;
    double fill_seconds = 0;
    double write_seconds = 0;
  };

  StreamBlocks(HostPool& pool, std::uint64_t block_size, unsigned count);

  void set_target(WriteTarget target) { target_ = std::move(target); }

  // A free block; waits for one. Throws the error of a write.
  std::byte* take();

  // The job that writes a block and then gives it back. Counts as under way from now on.
  std::unique_ptr<Job> start(const StreamWrite& write);

  // Waits until no write needs the memory that it copies from.
  void wait_copied();
  // Waits until no write is under way.
  void wait_written();

  // Throws the error of a write.
  void rethrow() const;
  // Makes writes that have not started give up.
  void abandon() noexcept;

  void count_fill(double seconds);
  Counts counts() const;

 private:
  class BlockWrite;

  void copied() noexcept;
  void ended(std::byte* block, std::uint64_t payload, const std::exception_ptr& error) noexcept;
  bool abandoned() const noexcept { return abandoned_.load(std::memory_order_relaxed); }

  const std::shared_ptr<Arena> arena_;
  WriteTarget target_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::byte*> free_;
  std::size_t under_way_ = 0;
  std::size_t copying_ = 0;
  std::atomic<bool> abandoned_{false};
  std::exception_ptr error_;
  Counts counts_;
  Stopwatch busy_;  // since something is under way
};

}  // namespace penstock
