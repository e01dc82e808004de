#include "transfer/strided.h"

#include <algorithm>
#include <cstring>

namespace penstock {
namespace {

template <std::size_t kWidth>
void gather(const std::byte* source, std::int64_t stride, std::byte* target, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(target + i * static_cast<std::int64_t>(kWidth), source + i * stride, kWidth);
}

void copy_run(const std::byte* source, std::int64_t stride, std::byte* target, std::int64_t count,
              std::uint64_t width) {
  if (stride == static_cast<std::int64_t>(width)) {
    std::memcpy(target, source, static_cast<std::size_t>(count) * width);
    return;
  }
  switch (width) {
    case 1:
      return gather<1>(source, stride, target, count);
    case 2:
      return gather<2>(source, stride, target, count);
    case 4:
      return gather<4>(source, stride, target, count);
    case 8:
      return gather<8>(source, stride, target, count);
    default:
      return gather<16>(source, stride, target, count);
  }
}

}  // namespace

bool is_contiguous(std::span<const std::int64_t> shape, std::span<const std::int64_t> byte_strides,
                   std::uint64_t width) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
  auto expected = static_cast<std::int64_t>(width);
  for (std::size_t i = shape.size(); i > 0; --i) {
    if (shape[i - 1] != 1 && byte_strides[i - 1] != expected) return false;
    expected *= shape[i - 1];
  }
  return true;
}

StridedReader::StridedReader(const std::byte* data, std::vector<std::int64_t> shape,
                             std::vector<std::int64_t> byte_strides, std::uint64_t width)
    : data_(data), width_(width) {
  // Dimensions that continue the one inside them are joined with it, from the inside out.
  for (std::size_t i = shape.size(); i > 0; --i) {
    const std::int64_t length = shape[i - 1];
    const std::int64_t stride = byte_strides[i - 1];
    if (length == 1) continue;
    const bool first = shape_.empty();
    if (!first && stride == strides_.back() * shape_.back()) {
      shape_.back() *= length;
    } else {
      shape_.push_back(length);
      strides_.push_back(stride);
    }
  }
  if (!shape_.empty()) {
    run_length_ = shape_.front();
    run_stride_ = strides_.front();
    shape_.erase(shape_.begin());
    strides_.erase(strides_.begin());
  } else {
    run_stride_ = static_cast<std::int64_t>(width);
  }
  std::reverse(shape_.begin(), shape_.end());
  std::reverse(strides_.begin(), strides_.end());
}

void StridedReader::read(std::uint64_t offset, std::span<std::byte> bytes) const {
  auto element = static_cast<std::int64_t>(offset / width_);
  auto left = static_cast<std::int64_t>(bytes.size() / width_);
  std::byte* target = bytes.data();
  while (left > 0) {
    std::int64_t row = element / run_length_;
    const std::int64_t column = element % run_length_;
    const std::byte* source = data_ + column * run_stride_;
    for (std::size_t i = shape_.size(); i > 0; --i) {
      source += row % shape_[i - 1] * strides_[i - 1];
      row /= shape_[i - 1];
    }
    const std::int64_t count = std::min(left, run_length_ - column);
    copy_run(source, run_stride_, target, count, width_);
    target += count * static_cast<std::int64_t>(width_);
    element += count;
    left -= count;
  }
}

}  // namespace penstock
