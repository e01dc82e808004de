// AioOperation: one read or write of an AioHandle, from the open file to the last byte.
//
// Most of it is done by jobs on a crew; finish() does what must come after them: the bytes behind the last whole block
// of direct I/O, and the size of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "device/device.h"
#include "memory/arena.h"
#include "penstock/aio.h"
#include "transfer/batch.h"
#include "transfer/crew.h"

namespace penstock {

class AioOperation final : public Batch, public std::enable_shared_from_this<AioOperation> {
 public:
  // Opens the file. Throws Error.
  static std::shared_ptr<AioOperation> open_read(const AioMemory& memory, const AioPlace& place);
  static std::shared_ptr<AioOperation> open_write(const AioMemory& memory, const AioPlace& place);

  // Gives the blocks to the crew.
  void start(Crew& crew, std::uint64_t block_size);

  // After all blocks are over. Throws Error, that of a block first of all.
  void finish();

  // Lets go of the memory's owner, on the thread of whoever waited: a worker still holds this for a moment, and must
  // not be the one that destroys what may belong to an interpreter that is shutting down.
  void release() noexcept {
    memory_.owner.reset();
    forget_error();
  }

 private:
  class BlockMove;

  AioOperation(IoRequest::Operation direction, const AioMemory& memory, const AioPlace& place);

  void open(int flags);
  // Memory of a device is there on the host for as long as the operation takes.
  void stand_in_for_device();
  std::unique_ptr<Lanes> lanes_after_caller() const;
  std::uint64_t device_address() const { return reinterpret_cast<std::uintptr_t>(memory_.data); }
  // Decides how many bytes from the start go past the page cache.
  void choose_direct(std::uint64_t offset_alignment);
  void check_reach() const;
  void reserve() const;
  void move_rest();
  void compare() const;
  bool reads() const { return direction_ == IoRequest::Operation::kRead; }
  std::byte* data() const { return stand_in_ != nullptr ? stand_in_->data() : static_cast<std::byte*>(memory_.data); }

  const IoRequest::Operation direction_;
  AioMemory memory_;
  std::shared_ptr<Device> device_;  // whose memory it is; null: the host's
  std::shared_ptr<Arena> stand_in_;
  const bool whole_file_;
  const bool validate_;
  const std::uint64_t offset_;
  std::string path_;      // for messages
  std::string openable_;  // the path, or that of the descriptor
  UniqueFd fd_;
  UniqueFd direct_fd_;
  std::uint32_t alignment_ = 1;
  std::uint64_t size_before_ = 0;
  std::uint64_t by_blocks_ = 0;  // bytes from the start that the crew moves
};

}  // namespace penstock
