// Checksums of tensors whose pieces come by on several threads in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "plan/plan.h"

namespace penstock {

class ChecksumCollector {
 public:
  // `owner` is a number below the count given to finish().
  void add(std::uint32_t owner, std::uint64_t offset, const std::byte* bytes, std::uint64_t nbytes);

  // The CRC-32C of each owner's pieces, joined by offset; that of an owner without pieces is the empty one's.
  std::vector<std::uint32_t> finish(std::size_t owner_count);

 private:
  struct Part {
    std::uint32_t owner;
    std::uint32_t checksum;
    std::uint64_t offset;
    std::uint64_t nbytes;
  };

  std::mutex mutex_;
  std::vector<Part> parts_;
};

}  // namespace penstock
