// Reading: a plan per file becomes jobs for a crew; bytes land where their pieces say.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "io/file.h"
#include "memory/huge_pages.h"
#include "plan/plan.h"
#include "transfer/batch.h"
#include "transfer/crew.h"

namespace penstock {

struct ReadTask {
  std::shared_ptr<const File> file;
  Plan plan;
  std::vector<bool> buffered;     // per block: read through the page cache
  std::vector<bool> drop_behind;  // per block: leave no pages of it in the cache afterwards
  bool by_page = false;           // blocks go straight only where the destination has huge pages
  HugePages* pages = nullptr;     // of the destination, if it can have any
};

// Sees every piece once, where its bytes (as they are in the file) are in memory. Called from several threads.
using PieceObserver = std::function<void(const Piece& piece, const std::byte* bytes)>;

struct ReadBatch : Batch {
  std::vector<ReadTask> tasks;
  bool discard = false;   // bytes are shown to the observer and go nowhere; plans have no straight blocks
  bool populate = false;  // the destination is fresh: fault it in block by block, ahead of the copy
  PieceObserver observe;
  std::shared_ptr<HugePageLuck> luck = std::make_shared<HugePageLuck>();  // batches of one load may share it
  std::vector<std::shared_ptr<void>> memory;  // what the plans' addresses point into, where it is ours
};

// Gives the batch's blocks to the crew.
void start_reading(Crew& crew, const std::shared_ptr<ReadBatch>& batch);

}  // namespace penstock
