// Verification: what files are checked against (see proofs.h), compared with their bytes as these land.
//
// With a seal every block of a file is checked where all of it is loaded, and else the wanted tensors, each with a
// CRC-32C of its own. safetensors and FlashPack files may have a CRC-32C of every tensor in their metadata. A torch zip
// has a CRC-32 of every record, that is of whole storages and of the pickle. What of a record or a block no wanted
// tensor covers is read too, and goes nowhere. Every byte is read and looked at once. Digests of whole files need their
// bytes in order, and are no business of this class: see digests.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/files/reader_state.h"
#include "api/load/proofs.h"
#include "plan/plan.h"
#include "transfer/checksum_collector.h"

namespace penstock {

class Verification {
 public:
  struct Scope {
    // Everything in the files, whatever holds no tensor too; a file with no proof is passed over.
    bool everything = false;
    // Of a file with a seal these bytes, block by block, though not all of its tensors are wanted: a stream's portion.
    std::optional<ByteRange> range = {};
    bool may_have_none = false;  // a file with no proof is passed over
  };

  // Of what `wanted`, tensors of the reader in its order, need. Throws Error(kFormat) where a file of theirs has no
  // proof, or is not as it was sealed by its header already.
  Verification(const Reader::State& state, std::shared_ptr<const Proofs> proofs,
               std::span<const TensorInfo* const> wanted)
      : Verification(state, std::move(proofs), wanted, Scope()) {}
  Verification(const Reader::State& state, std::shared_ptr<const Proofs> proofs,
               std::span<const TensorInfo* const> wanted, const Scope& scope);

  // What is to be read besides the wanted tensors, of one file, by offset. Their owners follow the tensors' numbers.
  std::vector<Segment> further_segments(std::uint32_t file) const;
  std::uint64_t further_bytes() const noexcept { return further_bytes_; }

  // Bytes of a tensor (owner: its number in the reader) or of a further segment. Safe from several threads.
  void look(const Piece& piece, const std::byte* bytes);

  // What does not agree, one line each, and the tensors that are concerned, by number.
  struct Problem {
    std::string text;
    std::vector<std::uint32_t> tensors;
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
    std::uint32_t expected = 0;  // of all; blocks have theirs in the seal
    std::uint32_t file = 0;
    ByteRange range;
    std::string subject;              // "tensor \"a\"", "record \"data/0\""
    const FoundSeal* seal = nullptr;  // that it is of
    bool by_block = false;
    std::uint32_t first_sum = 0;  // its number for the collector; one for each block
  };
  using Wanted = std::span<const TensorInfo* const>;

  void add_stored(std::uint32_t file, Wanted wanted, const Scope& scope);
  void add_records(std::uint32_t file, const std::vector<zip::Record>& records, Wanted wanted, bool without_tensors);
  void add_sealed_tensors(std::uint32_t file, Wanted wanted);
  void add_blocks(std::uint32_t file, Wanted wanted, ByteRange range);
  std::uint32_t add_check(Check check, std::uint64_t sums = 1);
  void cover(std::uint32_t file, ByteRange range, Wanted wanted, std::uint32_t check);
  void add_further(std::uint32_t file, std::uint64_t begin, std::uint64_t end, std::uint32_t check);
  Problem judge(const Check& check) const;
  void judge_blocks(const Check& check, std::vector<Problem>& problems) const;
  std::vector<std::uint32_t> tensors_in(std::uint32_t file, ByteRange range) const;

  const Reader::State& state_;
  const std::shared_ptr<const Proofs> proofs_;
  const bool may_have_none_;  // a file with no proof is passed over
  std::vector<Check> checks_;
  std::uint32_t sum_count_ = 0;
  std::vector<std::optional<std::uint32_t>> check_of_;      // by owner
  std::vector<std::pair<std::uint32_t, Segment>> further_;  // file and segment
  std::uint64_t further_bytes_ = 0;
  ChecksumCollector collector_;
  std::vector<std::uint32_t> found_;  // by sum
};

// What a load of `wanted` is verified with; nothing where it asks for none. What needs whole files in order, and files
// that were read already (indexes), is checked here: throws Error(kFormat) for the first that is damaged.
std::unique_ptr<Verification> start_verification(const Reader::State& state, const LoadOptions& options,
                                                 std::span<const TensorInfo* const> wanted);

// That part of it: of files with a wanted tensor, and of indexes. A line each.
std::vector<std::string> find_problems_of_whole_files(const Reader::State& state, const Proofs& proofs,
                                                      std::span<const TensorInfo* const> wanted,
                                                      const ProgressFunction& progress);

// Where the bytes start that each tensor of a file is checked with: tensors with the same start (in one record of a
// torch zip) are checked together.
std::vector<std::uint64_t> check_groups(const StoredChecksums& stored, std::uint32_t file,
                                        std::span<const TensorInfo* const> tensors);

}  // namespace penstock
