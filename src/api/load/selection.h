// What a load wants: tensors by file, or a caller's memory by file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "api/files/reader_state.h"
#include "api/load/part.h"
#include "base/bytes.h"
#include "base/tuning.h"
#include "plan/plan.h"

namespace penstock {

// Tensors wanted of one file, by offset.
struct FileSelection {
  std::uint32_t number = 0;  // of the file in the reader
  std::shared_ptr<const File> file;
  std::vector<const TensorInfo*> tensors;
  const ScatteredParts* scattered = nullptr;  // those of `tensors` whose bytes are apart
  std::uint64_t largest_gap = tuning::kLargestGap;

  // Null for a tensor that lies in one stretch.
  const PartRuns* runs_of(const TensorInfo* tensor) const;
  ByteRange extent_of(const TensorInfo* tensor) const;
  ByteRange hull() const;
  std::uint64_t nbytes() const;
};

struct Selection {
  std::vector<FileSelection> files;
  std::uint64_t nbytes = 0;
  std::size_t count = 0;
  std::vector<const TensorInfo*> views;  // tensors whose elements are apart in their file; not in `files`

  // Whether every tensor of a file is wanted.
  bool has_all_of(const Reader::State& state, std::uint32_t file) const;
};

// Its offset is not a multiple of its element size, so that it can't be used where it lies.
bool is_misaligned(const TensorInfo& tensor);

Selection select_tensors(const Reader::State& state, const std::function<bool(const TensorInfo&)>& wanted);

// Per file of the reader, the bytes from the first one that is wanted to the last, views included.
std::vector<ByteRange> wanted_ranges(const Reader::State& state, const Selection& selection);

// The stretches of a file that hold what is wanted. Gaps that a read would not leave out are part of them.
std::vector<ByteRange> stretches_of(const FileSelection& selection);
std::vector<ByteRange> stretches_of(std::span<const TensorInfo* const> tensors);
std::vector<ByteRange> stretches_of(std::span<const Segment> segments);

}  // namespace penstock
