// Time, and the wait for a batch with somebody watching.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "penstock/options.h"
#include "transfer/batch.h"

namespace penstock {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count(); }

 private:
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

// Calls `meanwhile`, then waits for a batch while telling `progress`; throws Error(kCancelled) when that asks to stop,
// the batch's error when it failed. Nothing of the batch is in flight any more when it returns or throws.
void wait_with_progress(Batch& batch, const ProgressFunction& progress, std::uint64_t bytes_total,
                        const Stopwatch& watch, const std::function<void()>& meanwhile = {});

}  // namespace penstock
