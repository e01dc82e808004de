#include "transfer/progress.h"

#include "base/error.h"
#include "base/tuning.h"

namespace penstock {

void wait_with_progress(Batch& batch, const ProgressFunction& progress, std::uint64_t bytes_total,
                        const Stopwatch& watch, const std::function<void()>& meanwhile) {
  bool cancelled = false;
  const auto report = [&] {
    if (!progress || cancelled) return;
    if (progress({batch.bytes_done(), bytes_total, watch.seconds()})) return;
    cancelled = true;
    batch.abandon();
  };
  try {
    if (meanwhile) meanwhile();
    while (!batch.wait_for(tuning::kProgressSeconds)) report();
    if (!cancelled) batch.rethrow();
    report();
  } catch (...) {
    batch.abandon();
    while (!batch.wait_for(1)) continue;
    throw;
  }
  if (cancelled) throw Error(ErrorKind::kCancelled, "cancelled");
}

}  // namespace penstock
