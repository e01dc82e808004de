#include "transfer/destination.h"

#include <cstring>
#include <utility>

#include "base/cast.h"
#include "memory/populate.h"

namespace penstock {
namespace {

std::byte* address_of(const Piece& piece) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(piece.address));
}

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

CopyTicket HostDestination::put(std::span<const Piece> pieces, const std::byte* bytes, std::uint64_t offset) {
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

}  // namespace penstock
