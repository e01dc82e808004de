// Where the tensors of one file go in an arena. Pure.
//
// Tensors that lie together in the file stay together in memory, so that they are read in few large requests; a large
// run starts at an address congruent to its file offset modulo the page size (a very large one: the size of a huge
// page), so that direct reads can land in place. Tensors that are converted, or whose offset is not a multiple of their
// element size, get a place of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "api/load/part.h"
#include "penstock/tensor.h"
#include "plan/plan.h"

namespace penstock {

struct PlacedTensor {
  std::uint64_t address = 0;  // from the start of the arena
  std::uint64_t nbytes = 0;   // in memory, after a conversion
  DType dtype = DType::kU8;
  bool moved = false;  // it was misaligned in the file
};

struct Placement {
  std::vector<PlacedTensor> tensors;  // as given
  std::vector<Segment> segments;      // by offset; `owner` is the place in `tensors`
  std::uint64_t arena_size = 0;
};

// Bytes of elements after a conversion.
std::uint64_t converted_size(std::uint64_t nbytes, DType from, DType to);

// Adds the runs of a part that go to `address` and on. Returns where they end.
std::uint64_t add_runs(const PartRuns& runs, std::uint64_t address, std::uint32_t owner, DType from, DType to,
                       std::vector<Segment>& segments);

// The type that a tensor has after loading with LoadOptions::dtype. Throws Error(kUnsupported) when it can't be
// converted.
DType loaded_dtype(const TensorInfo& tensor, std::optional<DType> wanted);

// `tensors` by offset; those of them that are `scattered` (optional) are put together of their runs.
Placement place_tensors(std::span<const TensorInfo* const> tensors, std::optional<DType> wanted,
                        const ScatteredParts* scattered = nullptr);

}  // namespace penstock
