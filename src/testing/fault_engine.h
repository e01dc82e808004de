// An engine that misbehaves on purpose: it wraps any backend and makes requests short, interrupted, late, out of order
// or failed, as real kernels, filesystems and drives do now and then.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "io/engine.h"

namespace penstock::testing {

struct Faults {
  std::uint32_t seed = 1;
  double short_transfer = 0;  // chance that a request moves only a part of its bytes
  double interrupted = 0;     // chance of EINTR
  double try_again = 0;       // chance of EAGAIN
  double held_back = 0;       // chance that a completion is delivered after later ones
  unsigned delay_microseconds = 0;
  std::uint32_t short_granule = 512;  // short transfers are multiples of this, as direct I/O's are

  // The request of this number (from 0, over all engines of a factory) fails with `error_number`.
  std::int64_t fail_at = -1;
  int error_number = 0;

  // After this many requests the engine itself breaks down: every wait fails.
  std::int64_t break_at = -1;
};

// What happened, over all engines of a factory.
struct FaultCounts {
  std::atomic<std::int64_t> requests{0};
  std::atomic<std::int64_t> injected{0};
};

// Wraps what `inner` makes. `counts` (optional) outlives the engines.
EngineFactory with_faults(EngineFactory inner, const Faults& faults, FaultCounts* counts = nullptr);

}  // namespace penstock::testing
