// Staging: the blocks that the requests of one worker pass through. Host memory of a pool, or pinned memory that a
// device copies from and to.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "device/pinned_pool.h"
#include "memory/arena.h"

namespace penstock {

// Used by one thread.
class Staging {
 public:
  virtual ~Staging() = default;

  // A block; null where none can be had now. May throw.
  virtual std::byte* take() = 0;
  virtual void give_back(std::byte* block) noexcept = 0;
  // Until one can be had, or a moment has passed. Only where take() gave none.
  virtual void wait() noexcept = 0;
  // All of it, where it is one stretch that an engine can be told of; else nothing.
  virtual std::span<std::byte> stretch() const noexcept { return {}; }
};

// Makes the staging of a worker, on its thread: `count` blocks of `block_size` bytes at most. May throw.
using StagingFactory = std::function<std::unique_ptr<Staging>(std::size_t count, std::size_t block_size)>;

// Blocks of its own for every worker.
StagingFactory host_staging(std::shared_ptr<HostPool> pool);

// Blocks of a share, which all workers take from.
StagingFactory pinned_staging(std::shared_ptr<PinnedPool::Share> share);

}  // namespace penstock
