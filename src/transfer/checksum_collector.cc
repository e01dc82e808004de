#include "transfer/checksum_collector.h"

#include <algorithm>
#include <span>
#include <tuple>

#include "base/checksum.h"

namespace penstock {

void ChecksumCollector::add(ChecksumKind kind, std::uint32_t owner, std::uint64_t offset, const std::byte* bytes,
                            std::uint64_t nbytes) {
  const std::span<const std::byte> span(bytes, static_cast<std::size_t>(nbytes));
  add_known(kind, owner, offset, kind == ChecksumKind::kCrc32c ? crc32c(span) : crc32(span), nbytes);
}

void ChecksumCollector::add_known(ChecksumKind kind, std::uint32_t owner, std::uint64_t offset, std::uint32_t checksum,
                                  std::uint64_t nbytes) {
  const std::lock_guard lock(mutex_);
  parts_.push_back({owner, checksum, offset, nbytes, kind});
}

std::vector<std::uint32_t> ChecksumCollector::finish(std::size_t owner_count) {
  const std::lock_guard lock(mutex_);
  std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) {
    return std::tie(a.owner, a.offset, b.nbytes) < std::tie(b.owner, b.offset, a.nbytes);
  });
  std::vector<std::uint32_t> checksums(owner_count, 0);  // of nothing
  const Part* last = nullptr;
  for (const Part& part : parts_) {
    const bool came_before =
        last != nullptr && last->owner == part.owner && part.offset + part.nbytes <= last->offset + last->nbytes;
    if (came_before) continue;
    last = &part;
    const auto combine = part.kind == ChecksumKind::kCrc32c ? crc32c_combine : crc32_combine;
    checksums[part.owner] = combine(checksums[part.owner], part.checksum, part.nbytes);
  }
  return checksums;
}

}  // namespace penstock
