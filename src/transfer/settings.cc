#include "transfer/settings.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <thread>

#include "base/bytes.h"
#include "base/error.h"
#include "base/tuning.h"
#include "device/pinned_pool.h"
#include "penstock/size.h"
#include "penstock/words.h"

namespace penstock {
namespace {

const char* environment(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? text : nullptr;
}

// The option, else the environment, else 0.
std::uint64_t asked_number(std::uint64_t option, const char* variable) {
  if (option != 0) return option;
  const char* text = environment(variable);
  if (text == nullptr) return 0;
  const auto value = parse_size(text);
  if (!value) throw_argument("{}={}: expected a number, such as 8 or 2M", variable, in_quotes(text));
  return *value;
}

// The option, else the environment's word, else kAuto.
template <typename Choice>
Choice asked_choice(Choice option, const char* variable) {
  const char* text = environment(variable);
  if (option != Choice::kAuto || text == nullptr) return option;
  const auto choice = from_word<Choice>(text);
  if (!choice) throw_argument("{}={}: expected one of {}", variable, in_quotes(text), list_words<Choice>());
  return *choice;
}

const char* reason_for(Backend option, Backend decided) {
  switch (decided) {
    case Backend::kUring:
      return option == decided ? "io_uring was asked for" : "PENSTOCK_BACKEND asks for io_uring";
    case Backend::kThreads:
      return option == decided ? "threads were asked for" : "PENSTOCK_BACKEND asks for threads";
    case Backend::kAuto:
      break;
  }
  return uring_is_available() ? "the kernel lets this process use io_uring"
                              : "the kernel refuses io_uring to this process";
}

std::uint64_t block_size_for(std::uint64_t nbytes) {
  return std::clamp(std::bit_floor(nbytes / tuning::kBlocksPerTransfer), tuning::kLeastBlock, tuning::kBlockSize);
}

std::uint64_t gds_block_size_for(std::uint64_t nbytes) {
  // Two for each thread.
  return std::clamp(std::bit_floor(nbytes / (2 * tuning::kGdsThreads)), tuning::kLeastBlock, tuning::kGdsBlock);
}

// Who waits for a device takes no processor.
unsigned default_threads(Passage passage) {
  if (passage == Passage::kDirectStorage) return tuning::kGdsThreads;
  return std::clamp(std::thread::hardware_concurrency(), 1u, tuning::kMostDefaultThreads);
}

std::uint64_t checked_block_size(std::uint64_t asked, std::uint64_t nbytes) {
  if (asked == 0) return nbytes <= tuning::kSmallTransfer ? tuning::kSmallBlock : block_size_for(nbytes);
  if (asked < tuning::kSmallestBlock || asked > tuning::kLargestBlock || (asked & (asked - 1)) != 0) {
    throw_argument("block size {}: expected a power of two from {} to {}", asked, tuning::kSmallestBlock,
                   tuning::kLargestBlock);
  }
  return asked;
}

unsigned checked_count(std::uint64_t asked, unsigned most, const char* what) {
  if (asked > most) throw_argument("{} {}: expected at most {}", what, asked, most);
  return static_cast<unsigned>(asked);
}

}  // namespace

MemoryBudget decide_budget(const IoOptions& options, std::uint64_t nbytes) {
  const std::uint64_t asked = asked_number(options.memory_budget, "PENSTOCK_MEMORY_BUDGET");
  if (asked != 0) {
    return asked_budget(asked, options.memory_budget != 0 ? "memory_budget" : "PENSTOCK_MEMORY_BUDGET");
  }
  return nbytes < tuning::kSmallestBudgeted ? MemoryBudget() : remaining_memory();
}

unsigned Settings::depth_per_thread() const noexcept {
  return std::max(1u, queue_depth / std::max(1u, threads));
}

Settings decide_settings(const IoOptions& options, std::uint64_t nbytes, Direction direction, Passage passage) {
  Settings settings;
  const Backend backend = asked_choice(options.backend, "PENSTOCK_BACKEND");
  const std::uint64_t block_asked = asked_number(options.block_size, "PENSTOCK_BLOCK_SIZE");
  settings.block_size = checked_block_size(block_asked, nbytes);
  settings.budget = decide_budget(options, nbytes);
  const std::uint64_t most_staging = std::min(tuning::kMostStaging, settings.budget.bytes / tuning::kStagingPart);
  if (block_asked == 0) {
    const std::uint64_t largest = std::bit_floor(most_staging / tuning::kLeastRequests);
    settings.block_size = std::max(std::min(settings.block_size, largest), tuning::kSmallestBlock);
  }
  if (passage == Passage::kDirectStorage) {
    settings.gds_block_size = block_asked != 0 ? settings.block_size : gds_block_size_for(nbytes);
  }
  if (passage != Passage::kHost) {
    settings.block_size = std::min(settings.block_size, std::bit_floor(PinnedPool::process().bound()));
  }
  settings.queue_depth =
      checked_count(asked_number(options.queue_depth, "PENSTOCK_QUEUE_DEPTH"), tuning::kDeepestQueue, "queue depth");
  settings.threads = checked_count(asked_number(options.threads, "PENSTOCK_THREADS"), tuning::kMostThreads, "threads");
  const bool threads_chosen = settings.threads != 0;
  if (settings.queue_depth == 0) {
    unsigned depth = direction == Direction::kRead ? tuning::kReadDepth : tuning::kWriteDepth;
    // Blocks are read or written and copied: both take a block.
    if (passage != Passage::kHost) depth = std::max(depth, tuning::kDeviceDepth);
    settings.queue_depth = std::max(depth, 2 * settings.threads);
    settings.queue_depth =
        static_cast<unsigned>(std::clamp<std::uint64_t>(most_staging / settings.block_size, 1, settings.queue_depth));
  }
  if (!threads_chosen) settings.threads = default_threads(passage);
  settings.threads = std::min(settings.threads, settings.queue_depth);
  if (nbytes <= tuning::kSmallTransfer && !threads_chosen && backend == Backend::kAuto) {
    // One request at a time needs one staging block, and a small one is not worth a huge page.
    settings.threads = 0;
    settings.queue_depth = 1;
    settings.block_size = std::min(settings.block_size, tuning::kSmallBlock);
    settings.make_engine = [](unsigned) { return make_inline_engine(); };
    settings.engine_reason = "so little is moved by the calling thread itself";
  } else {
    settings.make_engine = engine_factory(backend);
    settings.engine_reason = reason_for(options.backend, backend);
  }
  return settings;
}

Landing decide_landing(Landing asked) {
  return asked_choice(asked, "PENSTOCK_LANDING");
}

DirectStorage decide_gds(DirectStorage asked) {
  return asked_choice(asked, "PENSTOCK_GDS");
}

}  // namespace penstock
