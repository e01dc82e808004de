#include "transfer/settings.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <thread>

#include "base/bytes.h"
#include "base/error.h"
#include "base/tuning.h"

namespace penstock {
namespace {

const char* environment(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? text : nullptr;
}

// "2097152", "2048K", "2M".
std::optional<std::uint64_t> parse_size(std::string_view text) {
  std::uint64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  const std::string_view suffix(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
  if (suffix.empty()) return value;
  if (suffix == "K" || suffix == "k") return checked_multiply(value, kKiB);
  if (suffix == "M" || suffix == "m") return checked_multiply(value, kMiB);
  return std::nullopt;
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

Backend asked_backend(Backend option) {
  const char* text = environment("PENSTOCK_BACKEND");
  if (option != Backend::kAuto || text == nullptr) return option;
  const std::string_view name(text);
  if (name == "uring") return Backend::kUring;
  if (name == "threads") return Backend::kThreads;
  if (name == "auto") return Backend::kAuto;
  throw_argument("PENSTOCK_BACKEND={}: expected uring, threads or auto", in_quotes(name));
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

unsigned Settings::depth_per_thread() const noexcept {
  return std::max(1u, queue_depth / std::max(1u, threads));
}

Settings decide_settings(const IoOptions& options, std::uint64_t nbytes, Direction direction) {
  Settings settings;
  const Backend backend = asked_backend(options.backend);
  settings.block_size = checked_block_size(asked_number(options.block_size, "PENSTOCK_BLOCK_SIZE"), nbytes);
  settings.queue_depth =
      checked_count(asked_number(options.queue_depth, "PENSTOCK_QUEUE_DEPTH"), tuning::kDeepestQueue, "queue depth");
  settings.threads = checked_count(asked_number(options.threads, "PENSTOCK_THREADS"), tuning::kMostThreads, "threads");
  const bool threads_chosen = settings.threads != 0;
  if (settings.queue_depth == 0) {
    const unsigned depth = direction == Direction::kRead ? tuning::kReadDepth : tuning::kWriteDepth;
    settings.queue_depth = std::max(depth, 2 * settings.threads);
    settings.queue_depth = static_cast<unsigned>(
        std::clamp<std::uint64_t>(tuning::kMostStaging / settings.block_size, 1, settings.queue_depth));
  }
  if (!threads_chosen)
    settings.threads = std::clamp(std::thread::hardware_concurrency(), 1u, tuning::kMostDefaultThreads);
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
  const char* text = environment("PENSTOCK_LANDING");
  if (asked != Landing::kAuto || text == nullptr) return asked;
  const std::string_view name(text);
  if (name == "in_place") return Landing::kInPlace;
  if (name == "staged") return Landing::kStaged;
  if (name == "auto") return Landing::kAuto;
  throw_argument("PENSTOCK_LANDING={}: expected in_place, staged or auto", in_quotes(name));
}

}  // namespace penstock
