#include "transfer/strided_fetch.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "base/tuning.h"

namespace penstock {
namespace {

// What fetching a box takes, per element.
double cost_of(const StridedBox& box) {
  const auto nbytes = static_cast<double>(box.nbytes() + box.stretches * tuning::kBytesPerCopy);
  return nbytes / static_cast<double>(box.elements);
}

}  // namespace

void StridedBox::for_each(const std::function<void(std::int64_t from, std::uint64_t to)>& visit) const {
  for (std::uint64_t number = 0; number < stretches; ++number) {
    std::int64_t from = lowest;
    auto rest = static_cast<std::int64_t>(number);
    for (const Repeat& repeat : repeats) {
      from += rest % repeat.count * repeat.distance;
      rest /= repeat.count;
    }
    visit(from, number * stretch);
  }
}

StridedFetch::StridedFetch(std::span<const std::int64_t> shape, std::span<const std::int64_t> byte_strides,
                           std::uint64_t width)
    : width_(width) {
  std::uint64_t inside = 1;
  for (std::size_t i = shape.size(); i > 0; --i) {
    if (shape[i - 1] == 1) continue;
    dimensions_.push_back({shape[i - 1], byte_strides[i - 1], inside});
    inside *= static_cast<std::uint64_t>(shape[i - 1]);
  }
  if (dimensions_.empty()) dimensions_.push_back({1, static_cast<std::int64_t>(width), 1});
  std::reverse(dimensions_.begin(), dimensions_.end());
}

StridedBox StridedFetch::choose(std::uint64_t element, std::uint64_t most, std::uint64_t room) const {
  if (most == 0) return {};
  StridedBox exact = largest(element, most, room, 0);
  StridedBox with_gaps = largest(element, most, room, tuning::kBytesPerCopy);
  if (exact.elements == 0 || with_gaps.elements == 0) return exact;
  return cost_of(with_gaps) < cost_of(exact) ? with_gaps : exact;
}

// From the outside in, the first dimension of which at least one step fits.
StridedBox StridedFetch::largest(std::uint64_t element, std::uint64_t most, std::uint64_t room,
                                 std::uint64_t largest_gap) const {
  for (std::size_t i = 0; i < dimensions_.size(); ++i) {
    const Dimension& dimension = dimensions_[i];
    if (element % dimension.inside != 0 || dimension.inside > most) continue;
    const auto index = static_cast<std::int64_t>(element / dimension.inside) % dimension.length;
    std::int64_t count = std::min(dimension.length - index, static_cast<std::int64_t>(most / dimension.inside));
    for (; count > 0; count /= 2) {
      StridedBox box = pack(element, i, count, largest_gap);
      if (box.nbytes() <= room) return box;
    }
  }
  return {};
}

// `count` steps of a dimension from `element` on, with all that lies inside it.
StridedBox StridedFetch::pack(std::uint64_t element, std::size_t dimension, std::int64_t count,
                              std::uint64_t largest_gap) const {
  StridedBox box;
  box.elements = static_cast<std::uint64_t>(count) * dimensions_[dimension].inside;
  for (const Dimension& each : dimensions_) {
    box.lowest += static_cast<std::int64_t>(element / each.inside) % each.length * each.stride;
  }
  for (std::size_t i = dimension; i < dimensions_.size(); ++i) {
    box.shape.push_back(i == dimension ? count : dimensions_[i].length);
  }
  box.strides.resize(box.shape.size());
  // From the dimension whose elements lie closest together to the one where they are furthest apart.
  std::vector<std::size_t> order(box.shape.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto distance = [&](std::size_t i) { return std::abs(dimensions_[dimension + i].stride); };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return distance(a) < distance(b); });
  box.stretch = width_;
  for (const std::size_t i : order) {
    const std::int64_t step = distance(i);
    const std::int64_t reach = step * (box.shape[i] - 1);
    if (reach == 0) continue;
    const bool is_negative = dimensions_[dimension + i].stride < 0;
    std::int64_t in_block = step;
    if (box.repeats.empty() && static_cast<std::uint64_t>(step) <= box.stretch + largest_gap) {
      box.stretch += static_cast<std::uint64_t>(reach);
    } else {
      in_block = static_cast<std::int64_t>(box.nbytes());
      box.repeats.push_back({box.shape[i], step});
      box.stretches *= static_cast<std::uint64_t>(box.shape[i]);
    }
    if (is_negative) {
      box.lowest -= reach;
      box.first += in_block * (box.shape[i] - 1);
    }
    box.strides[i] = is_negative ? -in_block : in_block;
  }
  return box;
}

}  // namespace penstock
