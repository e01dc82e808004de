// Settings: IoOptions with every field decided, for one load or save.
#pragma once

#include <cstddef>
#include <cstdint>

#include "io/engine.h"
#include "memory/budget.h"
#include "penstock/options.h"

namespace penstock {

struct Settings {
  EngineFactory make_engine;
  std::uint64_t block_size = 0;
  unsigned queue_depth = 0;          // over all threads
  unsigned threads = 0;              // 0: everything happens on the calling thread
  bool register_staging = true;      // where the engine and the memlock limit allow it
  const char* engine_reason = "";    // why that engine
  std::uint64_t gds_block_size = 0;  // of what a device moves by itself
  MemoryBudget budget;               // unbounded where little is moved

  unsigned depth_per_thread() const noexcept;
  // Of the blocks that bytes pass through, at most.
  std::uint64_t staging_bytes() const noexcept { return block_size * queue_depth; }
};

enum class Direction : std::uint8_t { kRead, kWrite };

// What the bytes pass through on their way: memory of the host alone, or pinned memory to or from a device, or nothing
// where the device moves them itself.
enum class Passage : std::uint8_t { kHost, kDevice, kDirectStorage };

// Fills in what `options` and the environment leave open. `nbytes` is how much is to be moved: little of it is moved on
// the calling thread. Throws Error(kArgument) for values that make no sense, naming the variable they came from.
Settings decide_settings(const IoOptions& options, std::uint64_t nbytes, Direction direction = Direction::kRead,
                         Passage passage = Passage::kHost);

// The host memory that moving `nbytes` may take: what the caller or PENSTOCK_MEMORY_BUDGET allows, else what is left.
MemoryBudget decide_budget(const IoOptions& options, std::uint64_t nbytes);

// PENSTOCK_LANDING, or what the caller asked for where that is not kAuto.
Landing decide_landing(Landing asked);

// PENSTOCK_GDS, or what the caller asked for where that is not kAuto.
DirectStorage decide_gds(DirectStorage asked);

}  // namespace penstock
