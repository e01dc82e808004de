#include "api/load/part.h"

#include <algorithm>

#include "base/error.h"

namespace penstock {
namespace {

std::int64_t length_of(const Slice& range) {
  return (range.end - range.begin + range.step - 1) / range.step;
}

void check_range(const TensorInfo& tensor, std::size_t dimension, const Slice& range, std::int64_t at_least) {
  const std::int64_t size = tensor.shape[dimension];
  if (range.step < 1) {
    throw_argument("tensor {}: slice {}:{}:{} of dimension {}: a step is at least 1", in_quotes(tensor.name),
                   range.begin, range.end, range.step, dimension);
  }
  if (range.begin < 0 || range.begin > range.end || range.end > size) {
    throw_argument("tensor {}: slice {}:{} of dimension {} is not within 0:{}", in_quotes(tensor.name), range.begin,
                   range.end, dimension, size);
  }
  if (range.begin < at_least) {
    throw_argument("tensor {}: slice {}:{} of dimension {} begins before the one before it has ended",
                   in_quotes(tensor.name), range.begin, range.end, dimension);
  }
}

// The ranges of a dimension, checked, without empty ones; those that touch are one.
std::vector<Slice> checked_ranges(const TensorInfo& tensor, std::size_t dimension, const std::vector<Slice>& ranges) {
  std::vector<Slice> checked;
  std::int64_t end = 0;
  for (Slice range : ranges) {
    check_range(tensor, dimension, range, end);
    end = range.end;
    if (length_of(range) == 0) continue;
    if (length_of(range) == 1) range = {range.begin, range.begin + 1, 1};
    if (!checked.empty() && checked.back().step == 1 && range.step == 1 && checked.back().end == range.begin) {
      checked.back().end = range.end;
    } else {
      checked.push_back(range);
    }
  }
  return checked;
}

bool is_whole(const std::vector<Slice>& ranges, std::int64_t size) {
  return ranges.size() == 1 && ranges[0].step == 1 && ranges[0].begin == 0 && ranges[0].end == size;
}

std::int64_t last_of(const std::vector<Slice>& ranges) {
  return ranges.back().begin + (length_of(ranges.back()) - 1) * ranges.back().step;
}

}  // namespace

PartRuns::PartRuns(const TensorInfo& tensor, const Part& part) : shape_(tensor.shape), offset_(tensor.offset) {
  if (part.size() > tensor.shape.size()) {
    throw_argument("tensor {} has {} dimensions, {} slices were given", in_quotes(tensor.name), tensor.shape.size(),
                   part.size());
  }
  extent_ = {offset_, offset_};
  bool empty = false;
  for (std::size_t i = 0; i < shape_.size(); ++i) {
    std::vector<Slice> ranges;
    if (i < part.size() && !part[i].empty()) {
      ranges = checked_ranges(tensor, i, part[i]);
      shape_[i] = 0;
      for (const Slice& range : ranges) shape_[i] += length_of(range);
      if (shape_[i] == tensor.shape[i]) ranges = {{0, shape_[i]}};
    } else {
      ranges = {{0, shape_[i]}};
    }
    empty = empty || shape_[i] == 0;
    dimensions_.push_back(std::move(ranges));
  }
  if (dimensions_.empty()) {  // a scalar is one run
    dimensions_ = {{{0, 1}}};
    strides_ = {dtype_bits(tensor.dtype)};
  }
  if (empty) return;

  strides_.resize(dimensions_.size());
  std::uint64_t stride = dtype_bits(tensor.dtype);
  split_ = 0;
  for (std::size_t i = shape_.size(); i-- > 0;) {
    strides_[i] = stride;
    stride *= static_cast<std::uint64_t>(tensor.shape[i]);
    if (split_ == 0 && !is_whole(dimensions_[i], tensor.shape[i])) split_ = i;
  }
  dimensions_.resize(split_ + 1);
  strides_.resize(split_ + 1);
  refuse_cut_bytes(tensor);

  count_ = 0;
  std::uint64_t bits = 0;  // of one pass over the dimension that is split
  for (const Slice& range : dimensions_[split_]) {
    const auto length = static_cast<std::uint64_t>(length_of(range));
    count_ += range.step == 1 ? 1 : length;
    bits += length * strides_[split_];
  }
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  for (std::size_t i = 0; i <= split_; ++i) {
    if (i < split_) {
      count_ *= static_cast<std::uint64_t>(shape_[i]);
      bits *= static_cast<std::uint64_t>(shape_[i]);
    }
    first += static_cast<std::uint64_t>(dimensions_[i].front().begin) * strides_[i];
    last += static_cast<std::uint64_t>(last_of(dimensions_[i])) * strides_[i];
  }
  nbytes_ = bits / 8;
  extent_ = {offset_ + first / 8, offset_ + (last + strides_[split_]) / 8};
}

void PartRuns::refuse_cut_bytes(const TensorInfo& tensor) const {
  if (dtype_bits(tensor.dtype) % 8 == 0) return;
  bool cut = false;
  for (std::size_t i = 0; i < split_; ++i) cut = cut || (strides_[i] % 8 != 0 && shape_[i] > 0);
  for (const Slice& range : dimensions_[split_]) {
    const std::uint64_t stride = strides_[split_];
    cut = cut || static_cast<std::uint64_t>(range.begin) * stride % 8 != 0 ||
          (range.step == 1 ? static_cast<std::uint64_t>(range.end) * stride % 8 != 0 : stride % 8 != 0);
  }
  if (!cut) return;
  throw Error(ErrorKind::kUnsupported, fmt::format("tensor {}: a slice of {} must start and end on whole bytes",
                                                   in_quotes(tensor.name), dtype_name(tensor.dtype)));
}

// The last index moves first. False when all have been everywhere.
bool PartRuns::advance(std::vector<Index>& indices) const {
  for (std::size_t i = indices.size(); i-- > 0;) {
    const std::vector<Slice>& ranges = dimensions_[i];
    Index& index = indices[i];
    index.value += ranges[index.range].step;
    if (index.value < ranges[index.range].end) return true;
    if (++index.range < ranges.size()) {
      index.value = ranges[index.range].begin;
      return true;
    }
    index = {0, ranges.front().begin};
  }
  return false;
}

Part to_part(std::span<const Slice> slices) {
  Part part;
  for (const Slice& slice : slices) part.push_back({slice});
  return part;
}

}  // namespace penstock
