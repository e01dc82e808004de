#include "api/convert/box.h"

namespace penstock {

Box::Box(const Shape& tensor, const Shape& offsets, const Shape& shape)
    : tensor_(tensor.begin(), tensor.end()),
      offsets_(offsets.begin(), offsets.end()),
      shape_(shape.begin(), shape.end()) {
  for (const std::uint64_t size : shape_) count_ *= size;
  bool is_whole = true;  // in all dimensions behind this one
  for (std::size_t i = shape_.size(); i-- > 0 && is_whole;) {
    run_ *= shape_[i];
    is_whole = shape_[i] == tensor_[i];
  }
}

std::uint64_t Box::count_before(std::uint64_t element) const noexcept {
  std::uint64_t inner = 1;  // elements of the tensor for one step in this dimension
  for (const std::uint64_t size : tensor_) inner *= size;
  std::uint64_t rest = count_;  // the same of the box
  if (rest == 0) return 0;
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < shape_.size(); ++i) {
    inner /= tensor_[i];
    rest /= shape_[i];
    const std::uint64_t at = element / inner;
    element %= inner;
    if (at < offsets_[i]) return before;
    if (at - offsets_[i] >= shape_[i]) return before + shape_[i] * rest;
    before += (at - offsets_[i]) * rest;
  }
  return shape_.empty() ? std::min(element, count_) : before;
}

std::uint64_t Box::place_of(std::uint64_t element) const noexcept {
  std::uint64_t place = 0;
  std::uint64_t inner = 1;
  for (std::size_t i = shape_.size(); i-- > 0;) {
    place += (offsets_[i] + element % shape_[i]) * inner;
    element /= shape_[i];
    inner *= tensor_[i];
  }
  return place;
}

}  // namespace penstock
