// Reading bytes only to look at them: nothing is kept.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/options.h"
#include "transfer/load.h"

namespace penstock {

// Reads `wants` once and shows every piece to `observe`, which is called from several threads. Returns the bytes read.
std::uint64_t read_watched(const std::vector<FileWants>& wants, const IoOptions& io, const ProgressFunction& progress,
                           PieceObserver observe);

}  // namespace penstock
