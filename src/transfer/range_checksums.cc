#include "transfer/range_checksums.h"

#include <algorithm>

#include "base/checksum.h"

namespace penstock {

RangeChecksums::RangeChecksums(std::vector<std::uint64_t> cuts) : cuts_(std::move(cuts)) {
  std::sort(cuts_.begin(), cuts_.end());
  cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
}

void RangeChecksums::add(std::uint64_t offset, std::span<const std::byte> bytes) {
  std::vector<Part> parts;
  auto cut = std::upper_bound(cuts_.begin(), cuts_.end(), offset);
  while (!bytes.empty()) {
    std::uint64_t nbytes = bytes.size();
    if (cut != cuts_.end()) nbytes = std::min(nbytes, *cut++ - offset);
    parts.push_back({offset, nbytes, crc32c(bytes.first(static_cast<std::size_t>(nbytes)))});
    bytes = bytes.subspan(static_cast<std::size_t>(nbytes));
    offset += nbytes;
  }
  const std::lock_guard lock(mutex_);
  parts_.insert(parts_.end(), parts.begin(), parts.end());
}

void RangeChecksums::finish() {
  std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) { return a.offset < b.offset; });
  std::uint32_t sum = 0;
  for (Part& part : parts_) part.checksum = sum = crc32c_combine(sum, part.checksum, part.nbytes);
}

// crc(AB) is what combine() makes of crc(A) and crc(B), and since that is an exclusive or, crc(B) of crc(A) and
// crc(AB).
std::uint32_t RangeChecksums::of(ByteRange range) const {
  return crc32c_combine(up_to(range.begin), up_to(range.end), range.size());
}

std::uint32_t RangeChecksums::up_to(std::uint64_t offset) const {
  const auto after = std::lower_bound(parts_.begin(), parts_.end(), offset,
                                      [](const Part& part, std::uint64_t at) { return part.offset < at; });
  return after == parts_.begin() ? 0 : std::prev(after)->checksum;
}

}  // namespace penstock
