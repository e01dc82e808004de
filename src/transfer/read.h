// Reading: a plan per file becomes jobs for a crew; bytes land where their destination puts them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "io/file.h"
#include "plan/plan.h"
#include "plan/route.h"
#include "transfer/batch.h"
#include "transfer/crew.h"
#include "transfer/destination.h"

namespace penstock {

// What is wanted of one file.
struct FileRead {
  std::shared_ptr<const File> file;
  std::vector<Segment> segments;  // by offset
  ReadRoute route;
  std::shared_ptr<Destination> destination;
  std::uint64_t largest_gap = tuning::kLargestGap;
};

// The same, cut into blocks.
struct ReadTask {
  std::shared_ptr<const File> file;
  std::shared_ptr<Destination> destination;
  Plan plan;
  std::vector<bool> buffered;     // per block: read through the page cache
  std::vector<bool> drop_behind;  // per block: leave no pages of it in the cache afterwards
};

// Sees every piece once, where its bytes (as they are in the file) are in memory. Called from several threads.
using PieceObserver = std::function<void(const Piece& piece, const std::byte* bytes)>;

struct ReadBatch : Batch {
  std::vector<ReadTask> tasks;
  PieceObserver observe;
};

// With `keep_owners` no piece spans two segments. Opens the file for direct I/O where the route wants that.
// `gds_block_size`: of what the device reads by itself, where the destination's does.
ReadTask plan_read(const FileRead& read, bool keep_owners, std::uint64_t block_size, std::uint64_t gds_block_size = 0);

// Gives the batch's blocks to the crew.
void start_reading(Crew& crew, const std::shared_ptr<ReadBatch>& batch);

}  // namespace penstock
