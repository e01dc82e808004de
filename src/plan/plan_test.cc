#include "plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "base/bytes.h"

namespace penstock {
namespace {

constexpr PlanOptions kSmall{
    .block_size = 4096, .alignment = 512, .memory_alignment = 512, .largest_gap = 1024, .smallest_straight = 1024};

std::vector<std::uint64_t> block_offsets(const Plan& plan) {
  std::vector<std::uint64_t> offsets;
  for (const Block& block : plan.blocks) offsets.push_back(block.offset);
  return offsets;
}

TEST(CoalesceTest, neighbours_in_file_and_memory_become_one) {
  const Segment segments[] = {{0, 100, 1000},  {100, 50, 1100}, {150, 0, 5},
                              {150, 10, 1150}, {160, 10, 9000}, {200, 10, 9010}};
  const auto joined = coalesce(segments, false);
  ASSERT_EQ(joined.size(), 3u);
  EXPECT_EQ(joined[0].nbytes, 160u);
  EXPECT_EQ(joined[1].offset, 160u);
  EXPECT_EQ(joined[2].offset, 200u);
  EXPECT_EQ(coalesce(segments, true).size(), 5u);
}

TEST(PlanTest, a_staged_run_is_cut_into_aligned_blocks) {
  PlanOptions options = kSmall;
  options.allow_straight = false;
  const Segment segments[] = {{700, 10'000, 0}};
  const Plan plan = plan_blocks(segments, options);
  EXPECT_EQ(block_offsets(plan), (std::vector<std::uint64_t>{512, 4608, 8704}));
  EXPECT_EQ(plan.blocks[0].length, 4096u);
  EXPECT_EQ(plan.blocks[2].length, align_up(10'700, 512) - 8704);
}

TEST(PlanTest, a_small_gap_is_read_and_a_large_one_is_not) {
  PlanOptions options = kSmall;
  options.allow_straight = false;
  const Segment near_segments[] = {{0, 100, 0}, {1100, 100, 100}};
  EXPECT_EQ(plan_blocks(near_segments, options).blocks.size(), 1u);
  const Segment far_segments[] = {{0, 100, 0}, {1200, 100, 100}};
  EXPECT_EQ(plan_blocks(far_segments, options).blocks.size(), 2u);
}

TEST(PlanTest, a_congruent_run_goes_straight_but_for_its_edges) {
  const Segment segments[] = {{100, 9000, 512 * 8 + 100}};
  const Plan plan = plan_blocks(segments, kSmall);
  ASSERT_EQ(plan.blocks.size(), 5u);
  EXPECT_FALSE(plan.blocks[0].straight);
  EXPECT_TRUE(plan.blocks[1].straight);
  EXPECT_EQ(plan.blocks[1].offset, 512u);
  EXPECT_EQ(plan.pieces[plan.blocks[1].first_piece].address, 512u * 9);
  EXPECT_TRUE(plan.blocks[3].straight);
  EXPECT_EQ(plan.blocks[3].offset + plan.blocks[3].length, 8704u);
  EXPECT_FALSE(plan.blocks[4].straight);
}

TEST(PlanTest, with_a_granule_only_its_multiples_go_straight) {
  PlanOptions options = kSmall;
  options.straight_granule = 4096;
  const Segment congruent[] = {{100, 12'000, 4096 * 5 + 100}};
  const Plan plan = plan_blocks(congruent, options);
  ASSERT_EQ(plan.blocks.size(), 3u);
  EXPECT_FALSE(plan.blocks[0].straight);
  EXPECT_TRUE(plan.blocks[1].straight);
  EXPECT_EQ(plan.blocks[1].offset, 4096u);
  EXPECT_EQ(plan.blocks[1].length, 4096u);
  EXPECT_EQ(plan.pieces[plan.blocks[1].first_piece].address, 4096u * 6);
  EXPECT_FALSE(plan.blocks[2].straight);
  const Segment elsewhere[] = {{100, 12'000, 4096 * 5 + 612}};  // congruent to the alignment alone
  for (const Block& block : plan_blocks(elsewhere, options).blocks) EXPECT_FALSE(block.straight);
}

TEST(PlanTest, memory_that_does_not_match_is_staged) {
  const Segment segments[] = {{0, 8192, 8}};
  for (const Block& block : plan_blocks(segments, kSmall).blocks) EXPECT_FALSE(block.straight);
}

TEST(PlanTest, nothing_wanted_is_no_block) {
  EXPECT_TRUE(plan_blocks({}, kSmall).blocks.empty());
}

TEST(PlanTest, a_converted_element_is_never_cut_in_two) {
  PlanOptions options = kSmall;
  Segment segment{3, 40'000, 0};
  segment.from = DType::kF64;
  segment.to = DType::kF32;
  const Segment segments[] = {segment};
  const Plan plan = plan_blocks(segments, options);
  EXPECT_GT(plan.blocks.size(), 9u);
  std::uint64_t expected = 3;
  for (const Piece& piece : plan.pieces) {
    EXPECT_EQ(piece.offset, expected);
    EXPECT_EQ((piece.offset - 3) % 8, 0u);
    EXPECT_EQ(piece.nbytes % 8, 0u);
    EXPECT_EQ(piece.address, (piece.offset - 3) / 2);
    expected += piece.nbytes;
  }
  EXPECT_EQ(expected, 40'003u);
}

// Every byte is in one piece, every piece in its block, blocks are aligned and no longer than they may be.
void check(const std::vector<Segment>& segments, const Plan& plan, const PlanOptions& options) {
  std::map<std::uint64_t, const Piece*> pieces;
  for (const Block& block : plan.blocks) {
    EXPECT_TRUE(is_aligned(block.offset, options.alignment));
    EXPECT_TRUE(is_aligned(block.length, options.alignment));
    EXPECT_LE(block.length, options.block_size);
    EXPECT_GT(block.piece_count, 0u);
    for (std::uint32_t i = 0; i < block.piece_count; ++i) {
      const Piece& piece = plan.pieces[block.first_piece + i];
      EXPECT_GE(piece.offset, block.offset);
      EXPECT_LE(piece.offset + piece.nbytes, block.offset + block.length);
      EXPECT_TRUE(pieces.emplace(piece.offset, &piece).second);
      if (block.straight) {
        EXPECT_EQ(piece.nbytes, block.length);
        EXPECT_TRUE(is_aligned(piece.address, options.memory_alignment));
      }
    }
  }
  for (const Segment& segment : segments) {
    std::uint64_t offset = segment.offset;
    while (offset < segment.end()) {
      const auto piece = pieces.find(offset);
      ASSERT_NE(piece, pieces.end()) << offset;
      EXPECT_EQ(piece->second->owner, segment.owner);
      EXPECT_EQ(piece->second->address - segment.address, offset - segment.offset);
      offset += piece->second->nbytes;
    }
    EXPECT_EQ(offset, segment.end());
  }
}

TEST(PlanTest, straight_blocks_may_be_larger_than_staged_ones) {
  PlanOptions options = kSmall;
  options.straight_block_size = 4 * options.block_size;
  const Segment segments[] = {{100, 40'000, 512 * 8 + 100}};
  const Plan plan = plan_blocks(segments, options);
  ASSERT_EQ(plan.blocks.size(), 5u);
  EXPECT_EQ(plan.blocks[1].length, 4 * options.block_size - 512);
  EXPECT_EQ(plan.blocks[2].length, 4 * options.block_size);
  EXPECT_TRUE(plan.blocks[2].straight);
}

TEST(PlanTest, random_plans_cover_every_byte_once) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<Segment> segments;
    std::uint64_t offset = random() % 5000;
    for (std::uint32_t i = 0; i < 40; ++i) {
      Segment segment{offset, 1 + random() % (random() % 3 == 0 ? 20'000 : 300), random() % 100'000, i};
      if (random() % 2 == 0) segment.address = align_up(segment.address, 512) + segment.offset % 512;
      segments.push_back(segment);
      offset = segment.end() + (random() % 2 == 0 ? 0 : random() % 3000);
    }
    PlanOptions options = kSmall;
    options.alignment = round % 3 == 0 ? 1 : 512;
    options.allow_straight = round % 2 == 0;
    check(segments, plan_blocks(segments, options), options);
  }
}

TEST(PlanTest, an_element_across_the_end_of_the_smallest_block_is_planned) {
  PlanOptions options = kSmall;
  options.block_size = options.alignment;
  Segment segment{511, 2000, 0};
  segment.from = DType::kF16;
  segment.to = DType::kF64;
  const Plan plan = plan_blocks({&segment, 1}, options);
  std::uint64_t covered = segment.offset;
  for (const Piece& piece : plan.pieces) {
    EXPECT_EQ(piece.offset, covered);
    EXPECT_EQ(piece.nbytes % 2, 0u);
    covered += piece.nbytes;
  }
  EXPECT_EQ(covered, segment.end());
}

TEST(PlanTest, blocks_of_a_file_without_holes_never_overlap) {
  std::mt19937 random(11);
  for (int round = 0; round < 100; ++round) {
    std::vector<Segment> segments;
    std::uint64_t offset = 0;
    for (std::uint32_t i = 0; i < 30; ++i) {
      segments.push_back({offset, 1 + random() % 9000, align_up(random() % 100'000, 512) + offset % 512, i});
      offset = segments.back().end();
    }
    PlanOptions options = kSmall;
    options.largest_gap = 0;
    std::uint64_t covered = 0;
    for (const Block& block : plan_blocks(segments, options).blocks) {
      EXPECT_EQ(block.offset, covered);
      covered = block.offset + block.length;
    }
    EXPECT_EQ(covered, align_up(offset, 512));
  }
}

}  // namespace
}  // namespace penstock
