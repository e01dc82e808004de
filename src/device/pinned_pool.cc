#include "device/pinned_pool.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>

#include "base/bytes.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/page.h"
#include "base/tuning.h"
#include "penstock/size.h"

namespace penstock {
namespace {

std::uint64_t bound_of_process() {
  const char* asked = std::getenv("PENSTOCK_PINNED");
  if (asked == nullptr || *asked == '\0') return tuning::kPinnedBytes;
  const auto size = parse_size(asked);
  if (!size || *size < tuning::kSmallestBlock) {
    throw_argument("PENSTOCK_PINNED={}: expected a size of at least {}", in_quotes(asked), tuning::kSmallestBlock);
  }
  return *size;
}

// Before the pages are there. A hint: memory of another node works, more slowly.
void prefer_node(void* data, std::size_t nbytes, int node) {
  constexpr unsigned kBits = 8 * sizeof(unsigned long);
  std::array<unsigned long, 16> nodes{};
  if (node < 0 || static_cast<std::size_t>(node) >= nodes.size() * kBits) return;
  const auto number = static_cast<unsigned>(node);
  nodes[number / kBits] |= 1ul << (number % kBits);
  ::syscall(SYS_mbind, data, nbytes, MPOL_PREFERRED, nodes.data(), nodes.size() * kBits, 0);
}

// Anonymous memory that starts at a multiple of its huge pages, where it is as large; null when there is none.
std::byte* map_block(std::size_t nbytes, int node) {
  const std::size_t alignment = nbytes >= kHugePage ? kHugePage : page_size();
  const std::size_t mapped = nbytes + alignment;
  void* raw = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = align_up(begin, alignment);
  if (aligned > begin) ::munmap(raw, aligned - begin);
  const std::uintptr_t end = aligned + nbytes;
  if (begin + mapped > end) ::munmap(reinterpret_cast<void*>(end), begin + mapped - end);
  void* const data = reinterpret_cast<void*>(aligned);
  prefer_node(data, nbytes, node);
  if (nbytes >= kHugePage) ::madvise(data, nbytes, MADV_HUGEPAGE);
  // A child would share pages that a device writes to.
  ::madvise(data, nbytes, MADV_DONTFORK);
  return static_cast<std::byte*>(data);
}

struct ProcessPool {
  PinnedPool pool{bound_of_process()};
};

// A child of fork() has none of these pages.
auto& process_pools = *new PerProcess<ProcessPool>();

}  // namespace

PinnedPool& PinnedPool::process() {
  return process_pools.get().pool;
}

PinnedPool::PinnedPool(std::uint64_t bound) : bound_(bound) {}

PinnedPool::~PinnedPool() {
  for (Block& block : blocks_) destroy(block);
}

std::uint64_t PinnedPool::pinned_bytes() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

std::uint64_t PinnedPool::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

std::unique_ptr<PinnedPool::Share> PinnedPool::join(std::shared_ptr<Device> device, std::size_t block_size) {
  if (block_size > bound_) {
    throw_argument("blocks of {} bytes don't fit into {} bytes of pinned memory (PENSTOCK_PINNED)", block_size, bound_);
  }
  return std::unique_ptr<Share>(new Share(*this, std::move(device), block_size));
}

// Registered memory first: that is quicker to make than the driver's own.
PinnedPool::Block PinnedPool::create(const std::shared_ptr<Device>& device, std::size_t nbytes) {
  Block block{nullptr, nbytes, device->info().numa_node, Pinning::kUnpinned, {}, device, true};
  std::string first;
  block.data = map_block(nbytes, block.numa_node);
  if (block.data != nullptr && device->pin(block.data, nbytes, first)) {
    block.pinning = Pinning::kRegistered;
    return block;
  }
  if (std::byte* const data = device->allocate_pinned(nbytes, block.reason)) {
    if (block.data != nullptr) ::munmap(block.data, nbytes);
    block.data = data;
    block.pinning = Pinning::kAllocated;
    return block;
  }
  if (block.data == nullptr) {
    throw Error(ErrorKind::kMemory, fmt::format("cannot allocate {} bytes of memory for copies", nbytes), ENOMEM);
  }
  if (!first.empty()) block.reason = std::move(first);
  return block;
}

void PinnedPool::destroy(Block& block) noexcept {
  if (block.pinning == Pinning::kAllocated) {
    block.device->free_pinned(block.data);
  } else {
    if (block.pinning == Pinning::kRegistered) block.device->unpin(block.data);
    ::munmap(block.data, block.nbytes);
  }
}

bool PinnedPool::is_allowed(const Share& share) const {
  const std::uint64_t fair = bound_ / std::max<std::size_t>(1, shares_);
  return share.taken_ == 0 || (share.taken_ + 1) * share.block_size_ <= fair;
}

PinnedPool::Block* PinnedPool::take(Share& share) {
  std::list<Block> surplus;
  std::list<Block> fresh;
  {
    const std::lock_guard lock(mutex_);
    if (!is_allowed(share)) return nullptr;
    const int node = share.device_->info().numa_node;
    const auto fits = [&](const Block& block) {
      return !block.used && block.nbytes == share.block_size_ && block.numa_node == node;
    };
    if (const auto kept = std::find_if(blocks_.begin(), blocks_.end(), fits); kept != blocks_.end()) {
      kept->used = true;
      ++share.taken_;
      return &*kept;
    }
    // What nobody uses makes room for what is wanted.
    for (auto block = blocks_.begin(); block != blocks_.end() && total_ + share.block_size_ > bound_;) {
      const auto next = std::next(block);
      if (!block->used) {
        total_ -= block->nbytes;
        surplus.splice(surplus.end(), blocks_, block);
      }
      block = next;
    }
    if (total_ + share.block_size_ > bound_) {
      // Nothing is given up in vain: what was taken out is too little, and still pinned.
      for (const Block& block : surplus) total_ += block.nbytes;
      blocks_.splice(blocks_.end(), surplus);
      return nullptr;
    }
    for (Block& block : surplus) destroy(block);
    total_ += share.block_size_;
    peak_ = std::max(peak_, total_);
    ++share.taken_;
  }
  try {
    fresh.push_back(create(share.device_, share.block_size_));
  } catch (...) {
    const std::lock_guard lock(mutex_);
    total_ -= share.block_size_;
    --share.taken_;
    changed_.notify_all();
    throw;
  }
  const std::lock_guard lock(mutex_);
  blocks_.splice(blocks_.end(), fresh);
  return &blocks_.back();
}

void PinnedPool::give_back(Share& share, Block* block) noexcept {
  const std::lock_guard lock(mutex_);
  block->used = false;
  --share.taken_;
  changed_.notify_all();
}

PinnedPool::Share::Share(PinnedPool& pool, std::shared_ptr<Device> device, std::size_t block_size)
    : pool_(pool), device_(std::move(device)), block_size_(block_size) {
  const std::lock_guard lock(pool_.mutex_);
  ++pool_.shares_;
}

PinnedPool::Share::~Share() {
  const std::lock_guard lock(pool_.mutex_);
  --pool_.shares_;
  pool_.changed_.notify_all();
}

std::byte* PinnedPool::Share::take() {
  Block* const block = pool_.take(*this);
  if (block == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  held_.push_back(block);
  if (pinning_.empty() || block->pinning == Pinning::kUnpinned) {
    pinning_ = block->pinning == Pinning::kRegistered  ? "registered"
               : block->pinning == Pinning::kAllocated ? "allocated"
                                                       : "unpinned: " + block->reason;
  }
  return block->data;
}

void PinnedPool::Share::give_back(std::byte* data) noexcept {
  Block* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(held_.begin(), held_.end(), [&](const Block* each) { return each->data == data; });
    block = *found;
    held_.erase(found);
  }
  pool_.give_back(*this, block);
}

void PinnedPool::Share::wait() {
  std::unique_lock lock(pool_.mutex_);
  // Who gives back tells; the limit is for a block that somebody is just making.
  pool_.changed_.wait_for(lock, std::chrono::milliseconds(20));
}

std::string PinnedPool::Share::pinning() const {
  const std::lock_guard lock(mutex_);
  return pinning_;
}

}  // namespace penstock
