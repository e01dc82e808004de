// MemoryPool: the host memory that loads land in.
//
// Faulting in fresh memory costs about as much as reading the drive does, so memory that the last tensor lets go of is
// kept by its pool and handed out again, up to a bound. What is kept is marked as free to the kernel (MADV_FREE): it
// comes back at once when it is wanted and is taken silently when memory runs short.
//
// A pool may be shared by any number of readers and threads. Memory outlives the pool where tensors still point to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "penstock/export.h"

namespace PENSTOCK_EXPORT penstock {

struct MemoryPoolOptions {
  // How much released memory to keep for the next load. The default is a quarter of the memory that this process may
  // use (its cgroup's limit counts), and at most 4 GiB.
  std::uint64_t max_kept_bytes = kDefault;
  // Insist on transparent huge pages, whatever they take. By default large memory has them as far as they turn out to
  // come quickly: where a hypervisor has taken free memory back, small pages are there sooner. Insisting takes memory
  // too: what lies between tensors that are not neighbours in their file, up to 2 MiB for each 8 MiB or more.
  bool huge_pages = false;

  static constexpr std::uint64_t kDefault = ~std::uint64_t{0};
};

class MemoryPool {
 public:
  static std::shared_ptr<MemoryPool> create(const MemoryPoolOptions& options = {});

  // The pool that loads use when their options name none; made at first use.
  static std::shared_ptr<MemoryPool> process_default();

  virtual ~MemoryPool() = default;

  // Bytes kept for reuse now.
  virtual std::uint64_t kept_bytes() const = 0;

  // Bytes handed out and not yet released.
  virtual std::uint64_t used_bytes() const = 0;

  // At least `nbytes` for the caller's own use, contents undefined, aligned to a cache line at least. Throws
  // Error(kMemory).
  virtual std::shared_ptr<std::byte> take(std::size_t nbytes) = 0;

  // Gives everything kept back to the system.
  virtual void trim() = 0;

 protected:
  MemoryPool() = default;
};

}  // namespace penstock
