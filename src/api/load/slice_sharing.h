// What the slices of one file share, which several threads read at once: a mapping, and windows of small cold ones.
#pragma once

#include <cstdint>

#include "api/files/reader_state.h"
#include "api/load/slice_map.h"
#include "api/load/slice_windows.h"

namespace penstock {

struct SliceSharing {
  SliceMap map;
  SliceWindows windows;

  // Of a file of a reader. Made when the first slice is read.
  static SliceSharing& of(const Reader::State& state, std::uint32_t file);
};

}  // namespace penstock
