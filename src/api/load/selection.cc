#include "api/load/selection.h"

#include <algorithm>
#include <optional>

#include "base/tuning.h"

namespace penstock {
namespace {

void add_range(std::vector<ByteRange>& stretches, ByteRange range) {
  if (range.size() == 0) return;
  if (stretches.empty() || range.begin > stretches.back().end + tuning::kLargestGap) {
    stretches.push_back(range);
  } else {
    stretches.back().end = std::max(stretches.back().end, range.end);
  }
}

}  // namespace

const PartRuns* FileSelection::runs_of(const TensorInfo* tensor) const {
  if (scattered == nullptr) return nullptr;
  const auto found = scattered->find(tensor);
  return found == scattered->end() ? nullptr : &found->second;
}

ByteRange FileSelection::extent_of(const TensorInfo* tensor) const {
  const PartRuns* const runs = runs_of(tensor);
  return runs != nullptr ? runs->extent() : ByteRange{tensor->offset, tensor->offset + tensor->nbytes};
}

ByteRange FileSelection::hull() const {
  if (tensors.empty()) return {};
  std::uint64_t end = 0;
  for (const TensorInfo* tensor : tensors) end = std::max(end, extent_of(tensor).end);
  return {tensors.front()->offset, end};
}

std::uint64_t FileSelection::nbytes() const {
  std::uint64_t sum = 0;
  for (const TensorInfo* tensor : tensors) sum += tensor->nbytes;
  return sum;
}

bool is_misaligned(const TensorInfo& tensor) {
  return tensor.nbytes > 0 && !is_aligned(tensor.offset, dtype_alignment(tensor.dtype));
}

Selection select_tensors(const Reader::State& state, const std::function<bool(const TensorInfo&)>& wanted) {
  Selection selection;
  for (const TensorInfo& tensor : state.tensors) {
    if (wanted && !wanted(tensor)) continue;
    if (!tensor.byte_strides.empty()) {
      selection.views.push_back(&tensor);
      continue;
    }
    if (selection.files.empty() || selection.files.back().number != tensor.file) {
      selection.files.push_back({tensor.file, state.files[tensor.file], {}});
    }
    selection.files.back().tensors.push_back(&tensor);
    selection.nbytes += tensor.nbytes;
    ++selection.count;
  }
  return selection;
}

std::vector<ByteRange> wanted_ranges(const Reader::State& state, const Selection& selection) {
  std::vector<ByteRange> ranges(state.files.size());
  const auto widen = [&ranges](std::uint32_t file, ByteRange wanted) {
    if (wanted.size() == 0) return;
    ByteRange& range = ranges[file];
    range =
        range.size() == 0 ? wanted : ByteRange{std::min(range.begin, wanted.begin), std::max(range.end, wanted.end)};
  };
  for (const FileSelection& file : selection.files) widen(file.number, file.hull());
  for (const TensorInfo* view : selection.views) widen(view->file, {view->offset, view->offset + view->extent()});
  return ranges;
}

std::vector<ByteRange> stretches_of(const FileSelection& selection) {
  std::vector<ByteRange> stretches;
  for (const TensorInfo* tensor : selection.tensors) add_range(stretches, selection.extent_of(tensor));
  return stretches;
}

std::vector<ByteRange> stretches_of(std::span<const TensorInfo* const> tensors) {
  std::vector<ByteRange> stretches;
  for (const TensorInfo* tensor : tensors) add_range(stretches, {tensor->offset, tensor->offset + tensor->nbytes});
  return stretches;
}

std::vector<ByteRange> stretches_of(std::span<const Segment> segments) {
  std::vector<ByteRange> stretches;
  for (const Segment& segment : segments) add_range(stretches, {segment.offset, segment.end()});
  return stretches;
}

bool Selection::has_all_of(const Reader::State& state, std::uint32_t file) const {
  const auto is_of = [file](const TensorInfo& tensor) { return tensor.file == file; };
  auto wanted = std::count_if(views.begin(), views.end(), [&](const TensorInfo* view) { return is_of(*view); });
  for (const FileSelection& each : files) {
    if (each.number == file) wanted += static_cast<std::ptrdiff_t>(each.tensors.size());
  }
  return wanted == std::count_if(state.tensors.begin(), state.tensors.end(), is_of);
}

}  // namespace penstock
