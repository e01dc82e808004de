#include "plan/plan.h"

#include <algorithm>

#include "base/bytes.h"

namespace penstock {
namespace {

Piece piece_of(const Segment& segment, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t skipped = begin - segment.offset;
  const std::uint64_t address_skip =
      segment.converts() ? skipped / (dtype_bits(segment.from) / 8) * (dtype_bits(segment.to) / 8) : skipped;
  const std::uint64_t address = segment.address == kNowhere ? kNowhere : segment.address + address_skip;
  return {begin, end - begin, address, segment.owner, segment.from, segment.to, segment.apart};
}

class Planner {
 public:
  explicit Planner(const PlanOptions& options) : options_(options) {}

  Plan run(std::span<const Segment> segments) && {
    for (const Segment& segment : segments) add(segment);
    close_block();
    return std::move(plan_);
  }

 private:
  void add(const Segment& segment) {
    const std::uint64_t granule = std::max(options_.alignment, options_.straight_granule);
    const std::uint64_t begin = align_up(segment.offset, granule);
    const std::uint64_t end = align_down(segment.end(), granule);
    if (!can_go_straight(segment, begin, end)) return add_staged(segment, segment.offset, segment.end());
    // The misaligned edges share staged blocks with their neighbours.
    add_staged(segment, segment.offset, begin);
    add_straight(segment, begin, end);
    add_staged(segment, end, segment.end());
  }

  bool can_go_straight(const Segment& segment, std::uint64_t begin, std::uint64_t end) const {
    return options_.allow_straight && segment.straight && !segment.converts() && begin < end &&
           end - begin >= options_.smallest_straight &&
           (segment.any_address || is_aligned(segment.address + (begin - segment.offset),
                                              std::max(options_.memory_alignment, options_.straight_granule)));
  }

  void add_straight(const Segment& segment, std::uint64_t begin, std::uint64_t end) {
    close_block();
    const std::uint64_t size = options_.straight_block_size != 0 ? options_.straight_block_size : options_.block_size;
    while (begin < end) {
      // Cut at multiples of the block size, so that the requests of one file share their boundaries.
      const std::uint64_t cut = std::min(end, align_down(begin, size) + size);
      plan_.blocks.push_back({begin, cut - begin, true, piece_count(), 1});
      plan_.pieces.push_back(piece_of(segment, begin, cut));
      begin = cut;
    }
  }

  void add_staged(const Segment& segment, std::uint64_t begin, std::uint64_t end) {
    while (begin < end) {
      if (open_ && (begin < plan_.blocks.back().offset || begin > covered_ + options_.largest_gap ||
                    align_down(begin, options_.alignment) >= limit())) {
        close_block();
      }
      if (!open_) open_block(begin);
      std::uint64_t cut = std::min(end, limit());
      if ((segment.converts() || segment.whole_elements) && cut < end) {
        const std::uint64_t width = dtype_bits(segment.from) / 8;
        cut -= (cut - segment.offset) % width;
        if (cut <= begin && plan_.blocks.back().piece_count > 0) {
          close_block();  // the next element is cut by this block's end: it opens the next block
          continue;
        }
        // Blocks of one unit of alignment, and an element across its end: no block of that size holds it.
        if (cut <= begin) cut = begin + width;
      }
      plan_.pieces.push_back(piece_of(segment, begin, cut));
      ++plan_.blocks.back().piece_count;
      covered_ = std::max(covered_, cut);
      begin = cut;
    }
  }

  void open_block(std::uint64_t begin) {
    plan_.blocks.push_back({align_down(begin, options_.alignment), 0, false, piece_count(), 0});
    open_ = true;
    covered_ = begin;
  }

  void close_block() {
    if (!open_) return;
    Block& block = plan_.blocks.back();
    block.length = align_up(covered_, options_.alignment) - block.offset;
    open_ = false;
    if (block.piece_count == 0) plan_.blocks.pop_back();
  }

  // Where the open block must end at the latest.
  std::uint64_t limit() const { return plan_.blocks.back().offset + options_.block_size; }

  std::uint32_t piece_count() const { return static_cast<std::uint32_t>(plan_.pieces.size()); }

  const PlanOptions& options_;
  Plan plan_;
  bool open_ = false;
  std::uint64_t covered_ = 0;  // end of the last piece of the open block
};

}  // namespace

ByteRange hull_of(std::span<const Piece> pieces) {
  ByteRange hull{pieces.front().offset, 0};
  for (const Piece& piece : pieces) hull.end = std::max(hull.end, piece.offset + piece.nbytes);
  return hull;
}

std::vector<Segment> coalesce(std::span<const Segment> segments, bool keep_owners) {
  std::vector<Segment> joined;
  for (const Segment& segment : segments) {
    if (segment.nbytes == 0) continue;
    if (!joined.empty() && !keep_owners) {
      Segment& last = joined.back();
      const bool adjacent =
          last.end() == segment.offset && last.address + last.nbytes == segment.address && !segment.apart;
      if (adjacent && last.straight == segment.straight && !last.converts() && !segment.converts()) {
        last.nbytes += segment.nbytes;
        continue;
      }
    }
    joined.push_back(segment);
  }
  return joined;
}

Plan plan_blocks(std::span<const Segment> segments, const PlanOptions& options) {
  return Planner(options).run(segments);
}

}  // namespace penstock
