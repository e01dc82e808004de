// RangeChecksums: the CRC-32C of many ranges of one file, which may lie within each other, out of bytes that come by
// once, on several threads, in any order.
//
// What comes by is cut where a range begins or ends; the checksums from the start of the file to every cut give that of
// any range. All bytes of the file have to come by.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "base/bytes.h"

namespace penstock {

class RangeChecksums {
 public:
  // `cuts`: every place where a range begins or ends, in any order.
  explicit RangeChecksums(std::vector<std::uint64_t> cuts);

  // Safe from several threads.
  void add(std::uint64_t offset, std::span<const std::byte> bytes);

  // After all bytes: makes of() possible.
  void finish();
  std::uint32_t of(ByteRange range) const;

 private:
  struct Part {
    std::uint64_t offset = 0;
    std::uint64_t nbytes = 0;
    std::uint32_t checksum = 0;  // of the part, and then of all up to its end
  };
  std::uint32_t up_to(std::uint64_t offset) const;

  std::vector<std::uint64_t> cuts_;
  std::mutex mutex_;
  std::vector<Part> parts_;
};

}  // namespace penstock
