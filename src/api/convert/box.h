// Box: where the elements of a box of a tensor are, in the tensor and in the box. Both are row-major, so what a stretch
// of the tensor holds of the box is a stretch of the box. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "penstock/tensor.h"

namespace penstock {

class Box {
 public:
  // Lies within the tensor, which has no more than 2^63 elements.
  Box(const Shape& tensor, const Shape& offsets, const Shape& shape);

  std::uint64_t count() const noexcept { return count_; }

  // How many of its elements come before `element` of the tensor.
  std::uint64_t count_before(std::uint64_t element) const noexcept;

  // Its elements [begin, end) in runs that lie together in the tensor: use(first in the box, first in the tensor, how
  // many).
  template <typename Use>
  void for_each_run(std::uint64_t begin, std::uint64_t end, const Use& use) const {
    while (begin < end) {
      const std::uint64_t length = std::min(end, begin - begin % run_ + run_) - begin;
      use(begin, place_of(begin), length);
      begin += length;
    }
  }

 private:
  // Of an element of the box, in the tensor.
  std::uint64_t place_of(std::uint64_t element) const noexcept;

  std::vector<std::uint64_t> tensor_;
  std::vector<std::uint64_t> offsets_;
  std::vector<std::uint64_t> shape_;
  std::uint64_t count_ = 1;
  std::uint64_t run_ = 1;
};

}  // namespace penstock
