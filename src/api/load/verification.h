// Verification: the checksums that files carry, compared with their bytes as these land.
//
// safetensors and FlashPack files may have a CRC-32C of every tensor in their metadata. A torch zip has a CRC-32 of
// every record, that is of whole storages and of the pickle: what of a record no wanted tensor covers is read too, and
// goes nowhere. Every byte is read and looked at once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/files/reader_state.h"
#include "format/zip.h"
#include "plan/plan.h"
#include "transfer/checksum_collector.h"

namespace penstock {

// What the files of a reader say, read once.
struct StoredChecksums {
  explicit StoredChecksums(const Reader::State& state);

  std::vector<std::optional<std::uint32_t>> tensors;  // CRC-32C, by number
  std::vector<std::vector<zip::Record>> records;      // of each file: those with a CRC-32, by offset
};

class Verification {
 public:
  // Of what `wanted`, tensors of the reader in its order, need. `records_without_tensors`: the pickle of a zip, too.
  Verification(const Reader::State& state, const StoredChecksums& stored, std::span<const TensorInfo* const> wanted,
               bool records_without_tensors = false);

  // What is to be read besides the wanted tensors, of one file, by offset. Their owners follow the tensors' numbers.
  std::vector<Segment> further_segments(std::uint32_t file) const;
  std::uint64_t further_bytes() const noexcept { return further_bytes_; }

  // Bytes of a tensor (owner: its number in the reader) or of a further segment. Safe from several threads.
  void look(const Piece& piece, const std::byte* bytes);

  // What does not agree, one line each, and the bytes that are concerned.
  struct Problem {
    std::string text;
    std::uint32_t file = 0;
    ByteRange range;
  };
  std::vector<Problem> find_problems();

  // Throws Error(kFormat) for the first of them.
  void check();

  bool has_checksums() const noexcept { return !checks_.empty(); }
  // Whether bytes of this tensor count.
  bool looks_at(std::size_t tensor) const noexcept { return check_of_[tensor].has_value(); }
  // What the CRC-32C of this tensor turned out to be, where it has one of its own. After find_problems().
  std::optional<std::uint32_t> found_crc32c(std::size_t tensor) const;

 private:
  struct Check {
    ChecksumKind kind = ChecksumKind::kCrc32c;
    std::uint32_t expected = 0;
    std::uint32_t file = 0;
    ByteRange range;
    std::string subject;  // "tensor \"a\"", "record \"data/0\""
  };

  void add_tensors(const StoredChecksums& stored, std::span<const TensorInfo* const> wanted);
  void add_records(std::uint32_t file, const std::vector<zip::Record>& records,
                   std::span<const TensorInfo* const> wanted, bool without_tensors);
  void add_further(std::uint32_t file, std::uint64_t begin, std::uint64_t end, std::uint32_t check);

  const Reader::State& state_;
  std::vector<Check> checks_;
  std::vector<std::optional<std::uint32_t>> check_of_;      // by owner
  std::vector<std::pair<std::uint32_t, Segment>> further_;  // file and segment
  std::uint64_t further_bytes_ = 0;
  ChecksumCollector collector_;
  std::vector<std::uint32_t> found_;  // by check
};

// Where the bytes start that each tensor of a file is checked with: tensors with the same start (in one record of a
// torch zip) are checked together.
std::vector<std::uint64_t> check_groups(const StoredChecksums& stored, std::uint32_t file,
                                        std::span<const TensorInfo* const> tensors);

}  // namespace penstock
