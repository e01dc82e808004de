// Checksums of tensors (or records) whose pieces come by on several threads in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace penstock {

enum class ChecksumKind : std::uint8_t { kCrc32c, kCrc32 };

class ChecksumCollector {
 public:
  // `owner` is a number below the count given to finish(); all its pieces are of one kind.
  void add(ChecksumKind kind, std::uint32_t owner, std::uint64_t offset, const std::byte* bytes, std::uint64_t nbytes);

  // A part whose checksum was computed elsewhere.
  void add_known(ChecksumKind kind, std::uint32_t owner, std::uint64_t offset, std::uint32_t checksum,
                 std::uint64_t nbytes);

  // The checksum of each owner's pieces, joined by offset; that of an owner without pieces is the empty one's. A piece
  // that came before, alone or as part of a larger one, counts once.
  std::vector<std::uint32_t> finish(std::size_t owner_count);

 private:
  struct Part {
    std::uint32_t owner;
    std::uint32_t checksum;
    std::uint64_t offset;
    std::uint64_t nbytes;
    ChecksumKind kind;
  };

  std::mutex mutex_;
  std::vector<Part> parts_;
};

}  // namespace penstock
