// What has to be fetched of a strided tensor that the host can't read, to put some of its elements in a row. Pure.
//
// Elements are fetched in boxes: a range of one dimension, with all that lies inside it. The stretches of memory that a
// box touches are fetched one by one, or several with the gaps between them where these are small, and packed: in the
// pinned block a box is a strided tensor again, with strides of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace penstock {

// A box, and how it lies in the block once it is fetched.
struct StridedBox {
  // A dimension along which stretches repeat.
  struct Repeat {
    std::int64_t count = 1;
    std::int64_t distance = 0;  // in the tensor's memory, bytes
  };

  std::uint64_t elements = 0;   // in the tensor's order
  std::int64_t lowest = 0;      // the first stretch, from the tensor's first element, bytes
  std::uint64_t stretch = 0;    // bytes of each
  std::vector<Repeat> repeats;  // the first one varies fastest
  std::uint64_t stretches = 1;  // how many that makes
  std::int64_t first = 0;       // the box's first element in the block, bytes
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in the block, bytes

  std::uint64_t nbytes() const noexcept { return stretch * stretches; }

  // Calls visit(offset in the tensor's memory, offset in the block) for each stretch.
  void for_each(const std::function<void(std::int64_t from, std::uint64_t to)>& visit) const;
};

// Immutable, so safe from several threads.
class StridedFetch {
 public:
  StridedFetch(std::span<const std::int64_t> shape, std::span<const std::int64_t> byte_strides, std::uint64_t width);

  // The box that begins at `element` and has at most `most` elements, and at most `room` bytes once it is fetched.
  // Empty where not even one element fits.
  StridedBox choose(std::uint64_t element, std::uint64_t most, std::uint64_t room) const;

 private:
  struct Dimension {
    std::int64_t length;
    std::int64_t stride;
    std::uint64_t inside;  // elements of one step
  };

  StridedBox largest(std::uint64_t element, std::uint64_t most, std::uint64_t room, std::uint64_t largest_gap) const;
  StridedBox pack(std::uint64_t element, std::size_t dimension, std::int64_t count, std::uint64_t largest_gap) const;

  std::vector<Dimension> dimensions_;  // outer ones first, those of length 1 left out, never empty
  std::uint64_t width_;
};

}  // namespace penstock
