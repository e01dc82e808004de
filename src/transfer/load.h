// Loading: decides, file by file and block by block, whether bytes come past the page cache or from it, and waits for
// them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/options.h"
#include "transfer/read.h"

namespace penstock {

// Between two calls of a progress function.
inline constexpr double kProgressSeconds = 0.03;

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count(); }

 private:
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

// What is wanted of one file.
struct FileWants {
  std::shared_ptr<const File> file;
  std::vector<Segment> segments;  // by offset
};

// How direct reads land.
enum class LandingWay : std::uint8_t {
  kInPlace,  // straight in the segments' memory where alignment allows
  kStaged,   // in staging blocks, which are copied out
  kByPage,   // in place on huge pages, where the destination has them; else staged
};

struct ReadPolicy {
  CachePolicy cache = CachePolicy::kAuto;  // not kMap
  LandingWay landing = LandingWay::kStaged;
  bool keep_owners = false;  // pieces never span two segments
};

// Plans the reads of one file. Opens it for direct I/O where the policy wants that.
ReadTask plan_file(const FileWants& wants, const ReadPolicy& policy, std::uint64_t block_size);

// "direct", "buffered" or "mixed" for so many bytes of each kind.
const char* name_path(std::uint64_t direct, std::uint64_t buffered);

// Calls `meanwhile`, then waits for a batch while telling `progress`; throws Error(kCancelled) when that asks to stop,
// the batch's error when it failed. Nothing of the batch is in flight any more when it returns or throws.
void wait_with_progress(Batch& batch, const ProgressFunction& progress, std::uint64_t bytes_total,
                        const Stopwatch& watch, const std::function<void()>& meanwhile = {});

// Throws Error(kChanged) when a file is not what it was.
void check_unchanged(std::span<const ReadTask> tasks);

// Fills in what the crew knows.
void describe(Crew& crew, const Settings& settings, Stats& stats);

}  // namespace penstock
