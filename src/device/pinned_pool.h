// PinnedPool: the host memory that copies to and from devices pass through. One per process, kept, and bounded.
//
// Pinning takes long (8 s for 33 GiB), so blocks are few, made when they are first needed, and kept. A load or save has
// a Share: it may hold its fair part of the bound, and always one block, so that two loads at once both go on. A block
// is memory in huge pages that was registered with the driver; else memory of the driver's; else, with a reason,
// neither. Safe from several threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/device.h"

namespace penstock {

class PinnedPool {
 public:
  class Share;

  // Its bound is $PENSTOCK_PINNED (a size), or tuning::kPinnedBytes. Never destroyed: the driver may be gone by then.
  // Throws Error(kArgument) for a variable that is no such size.
  static PinnedPool& process();

  explicit PinnedPool(std::uint64_t bound);
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  std::uint64_t bound() const noexcept { return bound_; }
  std::uint64_t pinned_bytes() const;  // now
  std::uint64_t peak_bytes() const;

  // For one load or save on one device, in blocks of so many bytes, a multiple of the page size. Throws
  // Error(kArgument) for blocks larger than the bound.
  std::unique_ptr<Share> join(std::shared_ptr<Device> device, std::size_t block_size);

 private:
  struct Block {
    std::byte* data = nullptr;
    std::size_t nbytes = 0;
    int numa_node = -1;
    Pinning pinning = Pinning::kUnpinned;
    std::string reason;              // why it is not
    std::shared_ptr<Device> device;  // that pinned it
    bool used = false;
  };

  static Block create(const std::shared_ptr<Device>& device, std::size_t nbytes);
  static void destroy(Block& block) noexcept;
  bool is_allowed(const Share& share) const;
  Block* take(Share& share);
  void give_back(Share& share, Block* block) noexcept;

  const std::uint64_t bound_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Block> blocks_;
  std::size_t shares_ = 0;
  std::uint64_t total_ = 0;
  std::uint64_t peak_ = 0;
};

// Safe from several threads. Everything is given back before it is destroyed.
class PinnedPool::Share {
 public:
  ~Share();
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  std::size_t block_size() const noexcept { return block_size_; }

  // A block; null when there is none now, or when this share has its part. Throws Error(kMemory).
  std::byte* take();
  void give_back(std::byte* block) noexcept;

  // Until something was given back, or a moment has passed.
  void wait();

  // As Stats::pinning: of the blocks that were taken, the worst.
  std::string pinning() const;

 private:
  friend class PinnedPool;
  Share(PinnedPool& pool, std::shared_ptr<Device> device, std::size_t block_size);

  PinnedPool& pool_;
  const std::shared_ptr<Device> device_;
  const std::size_t block_size_;
  std::size_t taken_ = 0;  // guarded by the pool's mutex
  mutable std::mutex mutex_;
  std::vector<Block*> held_;
  std::string pinning_;
};

}  // namespace penstock
