#include "memory/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/page.h"

namespace penstock {
namespace {

constexpr std::uint64_t kCacheLine = 64;
constexpr std::uint64_t kLittle = 128 * kKiB;  // mapping less than this costs more than it is worth
constexpr std::uint64_t kDefaultKept = 4 * kGiB;
constexpr std::uint64_t kWorthHugePages = 16 * kMiB;

// Memory that comes back again and again is offered to the kernel only when nobody has wanted it for a while: that
// makes every page clean, and dirtying them again took a fifth of a snapshot's time.
constexpr std::uint64_t kWorthWarmth = 64 * kMiB;
constexpr std::chrono::seconds kWarmTime{30};

// A kept arena serves a request that leaves little of it unused: a load's memory is its payload, not somebody else's.
constexpr std::uint64_t kMostWaste = 16 * kMiB;
constexpr bool fits(std::uint64_t kept, std::uint64_t wanted) {
  return kept >= wanted && kept - wanted <= std::min(kMostWaste, kept / 4);
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

void Arena::offer_to_kernel() noexcept {
  ::madvise(data(), size(), MADV_FREE);
  warm = false;
}

HostPool::HostPool(const MemoryPoolOptions& options)
    : max_kept_bytes_(options.max_kept_bytes != MemoryPoolOptions::kDefault
                          ? options.max_kept_bytes
                          : std::min(kDefaultKept, memory_limit() / 4)),
      huge_pages_(options.huge_pages) {}

std::shared_ptr<Arena> HostPool::allocate(std::size_t nbytes) {
  return nbytes < kLittle ? allocate_little(nbytes) : allocate(nbytes, huge_pages_);
}

bool HostPool::may_be_huge(std::size_t nbytes) const {
  return (huge_pages_ || nbytes >= kWorthHugePages) && huge_pages_setting() != "never";
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
    const std::lock_guard lock(mutex_);
    used_bytes_ += arena->size();
  }
  return {arena.release(), [pool = weak_from_this()](Arena* released) {
            std::unique_ptr<Arena> owned(released);
            if (const auto alive = pool.lock()) alive->release(std::move(owned));
          }};
}

std::unique_ptr<Arena> HostPool::take_kept(std::size_t nbytes, bool huge_pages) {
  const std::lock_guard lock(mutex_);
  auto best = kept_.end();
  for (auto it = kept_.begin(); it != kept_.end(); ++it) {
    if ((*it)->huge_pages != huge_pages || !fits((*it)->size(), align_up(nbytes, page_size()))) continue;
    if (best == kept_.end() || (*it)->size() < (*best)->size()) best = it;
  }
  if (best == kept_.end()) return nullptr;
  std::unique_ptr<Arena> arena = std::move(*best);
  kept_.erase(best);
  kept_bytes_ -= arena->size();
  used_bytes_ += arena->size();
  ::madvise(arena->data(), arena->size(), MADV_KEEPONFORK);
  arena->reused = true;
  if (arena->pages != nullptr) arena->pages->settle();
  arena->warm = false;
  return arena;
}

void HostPool::release(std::unique_ptr<Arena> arena) noexcept {
  const std::uint64_t nbytes = arena->size();
  if (nbytes > max_kept_bytes_) {
    const std::lock_guard lock(mutex_);
    used_bytes_ -= nbytes;
    return;
  }
  const auto now = Clock::now();
  const bool warm = arena->reused && nbytes >= kWorthWarmth;
  arena->released = now;
  arena->warm = warm;
  // Outside of the lock: the kernel walks every page. Children of fork() need no copy of what nobody uses.
  if (!warm) arena->offer_to_kernel();
  ::madvise(arena->data(), nbytes, MADV_WIPEONFORK);
  std::list<std::unique_ptr<Arena>> surplus;  // unmapped after the lock is gone
  {
    const std::lock_guard lock(mutex_);
    used_bytes_ -= nbytes;
    kept_bytes_ += nbytes;
    kept_.push_back(std::move(arena));
    while (kept_bytes_ > max_kept_bytes_) {
      kept_bytes_ -= kept_.front()->size();
      surplus.splice(surplus.end(), kept_, kept_.begin());
    }
  }
  if (warm) cool_later(now + kWarmTime);
}

void HostPool::cool_later(Clock::time_point when) noexcept {
  const pid_t process = ::getpid();  // a child of fork() does not have its parent's plans
  {
    const std::lock_guard lock(mutex_);
    if (cooling_planned_in_ == process) return;
    cooling_planned_in_ = process;
  }
  try {
    do_later(Chore::kCooling, when, [pool = weak_from_this()] {
      if (const auto alive = pool.lock()) alive->cool(Clock::now() - kWarmTime);
    });
  } catch (...) {
    cool(Clock::now());
  }
}

void HostPool::cool(Clock::time_point released_before) noexcept {
  std::optional<Clock::time_point> next;
  {
    const std::lock_guard lock(mutex_);
    cooling_planned_in_ = 0;
    for (const auto& arena : kept_) {
      if (!arena->warm) continue;
      if (arena->released <= released_before) {
        arena->offer_to_kernel();
      } else if (!next) {
        next = arena->released + kWarmTime;
      }
    }
  }
  if (next) cool_later(*next);
}

std::uint64_t HostPool::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

std::uint64_t HostPool::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

void HostPool::trim() {
  std::list<std::unique_ptr<Arena>> surplus;
  const std::lock_guard lock(mutex_);
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

std::shared_ptr<HostPool> host_pool(const std::shared_ptr<MemoryPool>& pool) {
  auto host = std::dynamic_pointer_cast<HostPool>(pool != nullptr ? pool : MemoryPool::process_default());
  if (host == nullptr) throw_argument("the memory pool was not made by MemoryPool::create");
  return host;
}

}  // namespace penstock
