#include "api/read_watched.h"

#include "memory/arena.h"

namespace penstock {

std::uint64_t read_watched(const std::vector<FileWants>& wants, const IoOptions& io, const ProgressFunction& progress,
                           PieceObserver observe) {
  const Stopwatch watch;
  std::uint64_t nbytes = 0;
  for (const FileWants& file : wants) {
    for (const Segment& segment : file.segments) nbytes += segment.nbytes;
  }
  if (nbytes == 0) return 0;
  const Settings settings = decide_settings(io, nbytes);
  auto batch = std::make_shared<ReadBatch>();
  batch->discard = true;
  batch->observe = std::move(observe);
  for (const FileWants& file : wants) {
    batch->tasks.push_back(plan_file(file, {CachePolicy::kAuto, LandingWay::kStaged, true}, settings.block_size));
  }
  Crew crew(settings, host_pool(nullptr));
  start_reading(crew, batch);
  wait_with_progress(*batch, progress, nbytes, watch);
  check_unchanged(batch->tasks);
  return nbytes;
}

}  // namespace penstock
