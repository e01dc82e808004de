#include "transfer/destination.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/cast.h"
#include "base/page.h"
#include "memory/populate.h"

namespace penstock {
namespace {

std::byte* address_of(const Piece& piece) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(piece.address));
}

// Joins pieces that lie together on the host and on the device, and starts one copy for each run.
class DeviceRuns {
 public:
  // `room`: where what is converted is put. Every piece fits there; where all together don't, copies are waited for.
  DeviceRuns(Lane& lane, std::span<std::byte> room) : lane_(lane), room_(room) {}

  void add(const Piece& piece, const std::byte* source) {
    if (piece.apart) start();
    if (piece.from == piece.to) return extend(piece.address, source, piece.nbytes);
    const std::uint64_t width = dtype_bits(piece.to) / 8;
    const std::uint64_t count = piece.nbytes / (dtype_bits(piece.from) / 8);
    used_ = align_up(used_, width);
    if (used_ + count * width > room_.size()) {
      start();
      lane_.drain();
      used_ = 0;
    }
    cast_elements(piece.from, source, piece.to, room_.data() + used_, count);
    extend(piece.address, room_.data() + used_, count * width);
    used_ += count * width;
  }

  void start() {
    if (nbytes_ == 0) return;
    lane_.to_device(address_, source_, nbytes_);
    any_ = true;
    nbytes_ = 0;
  }

  bool any() const { return any_; }

 private:
  void extend(std::uint64_t address, const std::byte* source, std::uint64_t nbytes) {
    if (nbytes_ > 0 && address == address_ + nbytes_ && source == source_ + nbytes_) {
      nbytes_ += nbytes;
      return;
    }
    start();
    address_ = address;
    source_ = source;
    nbytes_ = nbytes;
  }

  Lane& lane_;
  const std::span<std::byte> room_;
  std::uint64_t used_ = 0;  // of the room
  std::uint64_t address_ = 0;
  const std::byte* source_ = nullptr;
  std::uint64_t nbytes_ = 0;
  bool any_ = false;
};

}  // namespace

HostDestination::HostDestination(Memory memory, ReadLanding landing, std::shared_ptr<HugePageBudget> budget)
    : memory_(std::move(memory)), by_page_(landing == ReadLanding::kByPage), budget_(std::move(budget)) {}

// Asks for huge pages where the memory may have them.
bool HostDestination::is_huge(const Piece& piece) noexcept {
  return memory_.pages != nullptr && memory_.pages->have(address_of(piece), piece.nbytes, *budget_);
}

std::byte* HostDestination::for_drive(const Piece& piece) noexcept {
  return !by_page_ || is_huge(piece) ? address_of(piece) : nullptr;
}

std::byte* HostDestination::for_copy(const Piece& piece, bool is_straight) noexcept {
  if (piece.address == kNowhere) return nullptr;
  const bool is_there = memory_.reused || (by_page_ && is_straight && is_huge(piece));
  if (!is_there) populate(address_of(piece), piece.nbytes);
  return address_of(piece);
}

CopyTicket HostDestination::put(std::span<const Piece> pieces, std::byte* bytes, std::uint64_t offset) {
  for (const Piece& piece : pieces) {
    if (piece.address == kNowhere) continue;
    const std::byte* source = bytes + (piece.offset - offset);
    if (piece.from == piece.to) {
      if (!memory_.reused) populate(address_of(piece), piece.nbytes);
      std::memcpy(address_of(piece), source, piece.nbytes);
    } else {
      cast_elements(piece.from, source, piece.to, address_of(piece), piece.nbytes / (dtype_bits(piece.from) / 8));
    }
  }
  return kDone;
}

DeviceDestination::DeviceDestination(std::shared_ptr<Lanes> lanes, std::shared_ptr<void> owner,
                                     std::uint64_t staging_size, Storage storage)
    : lanes_(std::move(lanes)),
      owner_(std::move(owner)),
      staging_size_(staging_size),
      storage_(std::move(storage)),
      reads_by_device_(storage_.file != nullptr) {}

// A file that it failed to read once it is not asked to read again.
std::optional<unsigned> DeviceDestination::read_by_device(const Piece& piece) noexcept {
  const auto registered = reinterpret_cast<std::uintptr_t>(storage_.registered.get());
  const DeviceSpot spot =
      registered != 0 ? DeviceSpot{registered, piece.address - registered} : DeviceSpot{piece.address, 0};
  try {
    lanes_->settle();
    return storage_.file->read(piece.offset, spot, piece.nbytes);
  } catch (const std::exception& error) {
    reads_by_device_ = false;
    storage_.use->note_staged(error.what());
  }
  return std::nullopt;
}

CopyTicket DeviceDestination::put(std::span<const Piece> pieces, std::byte* bytes, std::uint64_t offset) {
  Lane& lane = lanes_->mine();
  const std::uint64_t room = align_up(hull_of(pieces).end - offset, kCacheLine);
  DeviceRuns runs(lane, {bytes + room, static_cast<std::size_t>(staging_size_ - std::min(room, staging_size_))});
  try {
    for (const Piece& piece : pieces) {
      if (piece.address != kNowhere) runs.add(piece, bytes + (piece.offset - offset));
    }
    runs.start();
    return runs.any() ? lane.mark() : kDone;
  } catch (...) {
    lane.drain();  // the staging block is about to be used again
    throw;
  }
}

}  // namespace penstock
