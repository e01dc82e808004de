#include "memory/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/page.h"
#include "base/tuning.h"
#include "memory/budget.h"
#include "penstock/size.h"

namespace penstock {
namespace {

// A load's memory is its payload, not somebody else's.
constexpr bool fits(std::uint64_t kept, std::uint64_t wanted) {
  return kept >= wanted && kept - wanted <= std::min(tuning::kMostWaste, kept / 4);
}

}  // namespace

Mapping Mapping::anonymous(std::size_t nbytes, std::size_t alignment) {
  const std::size_t rounded = std::max<std::size_t>(align_up(nbytes, page_size()), page_size());
  // The kernel aligns to pages only, so more is mapped and the edges are given back.
  const std::size_t slack = alignment > page_size() ? alignment : 0;
  void* raw = rounded < nbytes || rounded + slack < rounded
                  ? MAP_FAILED
                  : ::mmap(nullptr, rounded + slack, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) {
    throw Error(ErrorKind::kMemory, fmt::format("cannot allocate {} bytes of memory: {}", nbytes, errno_text(ENOMEM)),
                ENOMEM);
  }
  if (slack == 0) return Mapping(raw, rounded);
  const auto begin = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = align_up(begin, alignment);
  if (aligned > begin) ::munmap(raw, aligned - begin);
  const std::uintptr_t tail = begin + slack - aligned;
  if (tail > 0) ::munmap(reinterpret_cast<void*>(aligned + rounded), tail);
  return Mapping(reinterpret_cast<void*>(aligned), rounded);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), nbytes_(std::exchange(other.nbytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(nbytes_, other.nbytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, nbytes_);
}

HostPool::HostPool(const MemoryPoolOptions& options)
    : max_kept_bytes_(options.max_kept_bytes != MemoryPoolOptions::kDefault
                          ? options.max_kept_bytes
                          : std::min(tuning::kMostKept, memory_limit() / 4)),
      huge_pages_(options.huge_pages) {}

std::shared_ptr<Arena> HostPool::allocate(std::size_t nbytes) {
  return nbytes < tuning::kSmallestMapping ? allocate_little(nbytes) : allocate(nbytes, huge_pages_);
}

bool HostPool::may_be_huge(std::size_t nbytes) const {
  return (huge_pages_ || nbytes >= tuning::kSmallestHugeArena) && huge_pages_setting() != "never";
}

std::shared_ptr<Arena> HostPool::allocate_little(std::size_t nbytes) {
  auto arena = std::make_shared<Arena>();
  arena->heap_size = std::max<std::size_t>(align_up(nbytes, kCacheLine), kCacheLine);
  arena->heap = {static_cast<std::byte*>(std::aligned_alloc(kCacheLine, arena->heap_size)), &std::free};
  if (arena->heap == nullptr) {
    throw Error(ErrorKind::kMemory, fmt::format("cannot allocate {} bytes of memory", nbytes), ENOMEM);
  }
  return arena;
}

std::shared_ptr<Arena> HostPool::allocate_staging(std::size_t nbytes) {
  return allocate(nbytes, nbytes >= kHugePage);
}

std::shared_ptr<Arena> HostPool::allocate(std::size_t nbytes, bool huge_pages) {
  std::unique_ptr<Arena> arena = take_kept(nbytes, huge_pages);
  if (arena == nullptr) {
    arena = std::make_unique<Arena>();
    const bool has_room = huge_pages || may_be_huge(nbytes);
    arena->mapping = Mapping::anonymous(nbytes, has_room ? kHugePage : page_size());
    arena->huge_pages = huge_pages;
    // Page by page, where it is not all: also on systems that would make every page huge, edges and gaps included.
    if (has_room) ::madvise(arena->data(), arena->size(), huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (has_room) arena->pages = std::make_unique<HugePages>(arena->data(), arena->size(), huge_pages);
    const std::lock_guard lock(process_mutex());
    used_bytes_ += arena->size();
  }
  return {arena.release(), [pool = weak_from_this()](Arena* released) {
            std::unique_ptr<Arena> owned(released);
            if (const auto alive = pool.lock()) alive->release(std::move(owned));
          }};
}

std::unique_ptr<Arena> HostPool::take_kept(std::size_t nbytes, bool huge_pages) {
  std::unique_ptr<Arena> arena;
  {
    const std::lock_guard lock(process_mutex());
    auto best = kept_.end();
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if ((*it)->huge_pages != huge_pages || !fits((*it)->size(), align_up(nbytes, page_size()))) continue;
      if (best == kept_.end() || (*it)->size() < (*best)->size()) best = it;
    }
    if (best == kept_.end()) return nullptr;
    arena = std::move(*best);
    kept_.erase(best);
    kept_bytes_ -= arena->size();
    used_bytes_ += arena->size();
  }
  ::madvise(arena->data(), arena->size(), MADV_KEEPONFORK);
  arena->reused = true;
  if (arena->pages != nullptr) arena->pages->settle();
  return arena;
}

void HostPool::release(std::unique_ptr<Arena> arena) noexcept {
  const std::uint64_t nbytes = arena->size();
  if (nbytes > max_kept_bytes_) {
    const std::lock_guard lock(process_mutex());
    used_bytes_ -= nbytes;
    return;
  }
  // The kernel may take the pages, when memory runs short, until they are written to again. Outside of the lock, since
  // it walks every page. Children of fork() need no copy of what nobody uses.
  ::madvise(arena->data(), nbytes, MADV_FREE);
  ::madvise(arena->data(), nbytes, MADV_WIPEONFORK);
  std::list<std::unique_ptr<Arena>> surplus;  // unmapped after the lock is gone
  {
    const std::lock_guard lock(process_mutex());
    used_bytes_ -= nbytes;
    kept_bytes_ += nbytes;
    kept_.push_back(std::move(arena));
    while (kept_bytes_ > max_kept_bytes_) {
      kept_bytes_ -= kept_.front()->size();
      surplus.splice(surplus.end(), kept_, kept_.begin());
    }
  }
}

std::uint64_t HostPool::kept_bytes() const {
  const std::lock_guard lock(process_mutex());
  return kept_bytes_;
}

std::uint64_t HostPool::used_bytes() const {
  const std::lock_guard lock(process_mutex());
  return used_bytes_;
}

bool HostPool::keeps(std::size_t nbytes) {
  const std::lock_guard lock(process_mutex());
  return std::any_of(kept_.begin(), kept_.end(),
                     [&](const auto& arena) { return fits(arena->size(), align_up(nbytes, page_size())); });
}

std::shared_ptr<std::byte> HostPool::take(std::size_t nbytes) {
  if (!keeps(roomy(nbytes))) {
    const MemoryBudget budget = remaining_memory();
    if (nbytes > budget.bytes) {
      throw Error(ErrorKind::kMemory,
                  fmt::format("a copy takes {} of memory, and {}", format_size(nbytes), budget.source));
    }
  }
  std::shared_ptr<Arena> arena = allocate(roomy(nbytes));
  if (arena->pages != nullptr && !arena->reused) {
    for (std::size_t at = 0; at + kHugePage <= nbytes; at += kHugePage) {
      arena->pages->have(arena->data() + at, kHugePage, taken_);
    }
  }
  std::byte* const data = arena->data();
  return {std::move(arena), data};
}

void HostPool::trim() {
  std::list<std::unique_ptr<Arena>> surplus;
  const std::lock_guard lock(process_mutex());
  surplus.swap(kept_);
  kept_bytes_ = 0;
}

std::shared_ptr<MemoryPool> MemoryPool::create(const MemoryPoolOptions& options) {
  return std::make_shared<HostPool>(options);
}

std::shared_ptr<MemoryPool> MemoryPool::process_default() {
  static const std::shared_ptr<MemoryPool> pool = create();
  return pool;
}

namespace {

// Made when the library is loaded: a static that is being made while another thread forks is never there in the child.
[[maybe_unused]] const std::shared_ptr<MemoryPool> made_early = MemoryPool::process_default();

}  // namespace

std::size_t roomy(std::size_t nbytes) noexcept {
  if (nbytes < tuning::kSmallestRoomy || nbytes > tuning::kLargestRoomy) return nbytes;
  return align_up(nbytes + tuning::kSmallestMapping, std::bit_floor(nbytes) / 16);
}

std::shared_ptr<HostPool> host_pool(const std::shared_ptr<MemoryPool>& pool) {
  auto host = std::dynamic_pointer_cast<HostPool>(pool != nullptr ? pool : MemoryPool::process_default());
  if (host == nullptr) throw_argument("the memory pool was not made by MemoryPool::create");
  return host;
}

}  // namespace penstock
