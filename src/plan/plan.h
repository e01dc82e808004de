// The planner: from "these bytes of the file belong at those addresses" to a list of large, aligned requests.
//
// Pure: no I/O, no allocation but its result. The same plan serves reads (file -> memory) and writes (memory -> file):
// a block either moves straight between the drive and its final place, or through a staging block whose pieces are
// copied.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/tuning.h"
#include "penstock/dtype.h"

namespace penstock {

// The address of bytes that are read to be looked at, and go nowhere.
inline constexpr std::uint64_t kNowhere = ~std::uint64_t{0};

// Bytes that lie together in a file and together in memory.
struct Segment {
  std::uint64_t offset = 0;   // in the file
  std::uint64_t nbytes = 0;   // in the file
  std::uint64_t address = 0;  // in memory (or in whatever space the caller counts in)
  std::uint32_t owner = 0;    // the caller's number: a tensor, a source
  DType from = DType::kU8;    // different from `to`: elements are converted on the way
  DType to = DType::kU8;
  bool whole_elements = false;  // no element is cut in two, though none is converted
  bool straight = true;         // false: this memory can't be handed to the kernel (strided, produced, converted)
  bool any_address = false;     // goes straight whatever the alignment of its address
  bool apart = false;           // never joined with what lies before it in memory, which is another allocation

  bool converts() const noexcept { return from != to; }
  std::uint64_t end() const noexcept { return offset + nbytes; }
};

// A part of a segment that lies in one block.
struct Piece {
  std::uint64_t offset = 0;   // in the file
  std::uint64_t nbytes = 0;   // in the file
  std::uint64_t address = 0;  // where it belongs
  std::uint32_t owner = 0;
  DType from = DType::kU8;
  DType to = DType::kU8;
  bool apart = false;  // as its segment
};

// The bytes of the file from the first piece to the end of the furthest. Pieces may overlap (tensors over one storage),
// so that is not always the end of the last.
ByteRange hull_of(std::span<const Piece> pieces);

struct Block {
  std::uint64_t offset = 0;  // in the file, a multiple of the alignment
  std::uint64_t length = 0;  // a multiple of the alignment
  bool straight = false;     // moves between the drive and pieces[first].address with no copy
  std::uint32_t first_piece = 0;
  std::uint32_t piece_count = 0;
};

struct Plan {
  std::vector<Block> blocks;  // by offset
  std::vector<Piece> pieces;  // by block
};

struct PlanOptions {
  std::uint64_t block_size = tuning::kBlockSize;    // a multiple of the alignment
  std::uint64_t alignment = 4096;                   // of offsets and lengths; 1 for buffered I/O
  std::uint64_t memory_alignment = 4096;            // of addresses that blocks move straight to or from
  std::uint64_t largest_gap = tuning::kLargestGap;  // unwanted bytes that are read to save a request; 0 for writes
  std::uint64_t smallest_straight = tuning::kSmallestStraightRead;
  std::uint64_t straight_block_size = 0;  // 0: as the others
  std::uint64_t straight_granule = 1;     // straight moves begin and end at its multiples, in file and memory
  bool allow_straight = true;
};

// `segments` by offset. Those that overlap in the file (tensors over one storage) are each read in full. Joins
// neighbours that also lie together in memory and need no conversion, unless `keep_owners` (checksums need to know
// whose bytes they are).
std::vector<Segment> coalesce(std::span<const Segment> segments, bool keep_owners);

// Cuts coalesced segments into blocks. Every byte of every segment is in exactly one piece; no element of a segment
// that converts or asks for whole elements is cut in two. Blocks of staged pieces may cover bytes between them (gaps)
// and, at their edges, bytes of other blocks.
Plan plan_blocks(std::span<const Segment> segments, const PlanOptions& options);

}  // namespace penstock
