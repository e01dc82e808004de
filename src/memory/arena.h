// Arena: a stretch of anonymous host memory, and HostPool, which hands arenas out and keeps them for reuse.
//
// An arena is shared: tensors hold it through a std::shared_ptr, and the last one to let go gives it back to its pool
// (or to the system when the pool is gone or full). Pools are safe from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>

#include "memory/huge_pages.h"
#include "penstock/memory.h"

namespace penstock {

// A private anonymous mapping with one owner.
class Mapping {
 public:
  Mapping() = default;
  // Starts at a multiple of the page size and of `alignment`, a power of two. Throws Error(kMemory).
  static Mapping anonymous(std::size_t nbytes, std::size_t alignment = 1);
  // Takes over what mmap returned.
  Mapping(void* data, std::size_t nbytes) noexcept : data_(static_cast<std::byte*>(data)), nbytes_(nbytes) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return nbytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t nbytes_ = 0;
};

struct Arena {
  Mapping mapping;
  bool huge_pages = false;           // all of it was asked for as such
  std::unique_ptr<HugePages> pages;  // nothing for memory too small to have any
  bool reused = false;               // its pages were touched before, and most likely are still there
  std::unique_ptr<std::byte[], void (*)(void*)> heap{nullptr, nullptr};  // in place of a mapping, for little
  std::size_t heap_size = 0;

  std::byte* data() const noexcept { return heap != nullptr ? heap.get() : mapping.data(); }
  std::size_t size() const noexcept { return heap != nullptr ? heap_size : mapping.size(); }
};

class HostPool final : public MemoryPool, public std::enable_shared_from_this<HostPool> {
 public:
  explicit HostPool(const MemoryPoolOptions& options);

  // At least `nbytes`, contents undefined, aligned to a page (to a cache line below 128 KiB: so little comes from the
  // heap and is not kept). Throws Error(kMemory).
  std::shared_ptr<Arena> allocate(std::size_t nbytes);
  // Whether such memory may come in huge pages.
  bool may_be_huge(std::size_t nbytes) const;
  // The same on huge pages where the system has them: for staging blocks, which are small and always hot.
  std::shared_ptr<Arena> allocate_staging(std::size_t nbytes);

  std::uint64_t kept_bytes() const override;
  std::uint64_t used_bytes() const override;
  std::shared_ptr<std::byte> take(std::size_t nbytes) override;
  void trim() override;

 private:
  static std::shared_ptr<Arena> allocate_little(std::size_t nbytes);
  std::shared_ptr<Arena> allocate(std::size_t nbytes, bool huge_pages);
  // Whether some of it that is free is as large.
  bool keeps(std::size_t nbytes);
  std::unique_ptr<Arena> take_kept(std::size_t nbytes, bool huge_pages);
  void release(std::unique_ptr<Arena> arena) noexcept;

  const std::uint64_t max_kept_bytes_;
  const bool huge_pages_;
  // Guarded by process_mutex(): also in a child of fork() tensors give their memory back here.
  std::list<std::unique_ptr<Arena>> kept_;  // oldest first
  std::uint64_t kept_bytes_ = 0;
  std::uint64_t used_bytes_ = 0;
  HugePageBudget taken_;  // of all that is taken: nobody knows what belongs together
};

// How much to ask a pool for in place of `nbytes`: sizes that are nearly the same become the same, so that what one
// tensor leaves is taken by the next. Only addresses are spent on it, unless somebody writes there.
std::size_t roomy(std::size_t nbytes) noexcept;

// `pool` as what it is, or the process's default when it is null.
std::shared_ptr<HostPool> host_pool(const std::shared_ptr<MemoryPool>& pool);

// Memory that this process may use: the smallest of the machine's and its cgroups' limits.
std::uint64_t memory_limit();

// The machine's alone.
std::uint64_t physical_memory();

// Memory that this process can still take: the page cache and swap count as free.
std::uint64_t available_memory();

}  // namespace penstock
