// Parts of tensors (LoadOptions::parts) as the runs of bytes that they are in a file. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "penstock/options.h"
#include "penstock/tensor.h"

namespace penstock {

class PartRuns {
 public:
  // Throws Error: ranges that are not within the tensor, that descend or overlap, or that cut a byte in two.
  PartRuns(const TensorInfo& tensor, const Part& part);

  const Shape& shape() const noexcept { return shape_; }
  std::uint64_t nbytes() const noexcept { return nbytes_; }  // as stored
  std::uint64_t count() const noexcept { return count_; }    // of runs
  // From the first byte in the file to behind the last; what no run covers is in between.
  ByteRange extent() const noexcept { return extent_; }

  // Calls `use(offset in the file, bytes)` for each run, by offset: the order in which they follow each other in the
  // part.
  template <typename Use>
  void for_each(const Use& use) const {
    if (count_ == 0) return;
    std::vector<Index> indices;
    for (std::size_t i = 0; i < split_; ++i) indices.push_back({0, dimensions_[i].front().begin});
    do {
      std::uint64_t base = offset_;
      for (std::size_t i = 0; i < split_; ++i) base += static_cast<std::uint64_t>(indices[i].value) * strides_[i] / 8;
      for (const Slice& range : dimensions_[split_]) for_each_in(range, base, use);
    } while (advance(indices));
  }

 private:
  struct Index {
    std::size_t range = 0;
    std::int64_t value = 0;
  };

  template <typename Use>
  void for_each_in(const Slice& range, std::uint64_t base, const Use& use) const {
    const std::uint64_t stride = strides_[split_];
    if (range.step == 1) {
      use(base + static_cast<std::uint64_t>(range.begin) * stride / 8,
          static_cast<std::uint64_t>(range.end - range.begin) * stride / 8);
      return;
    }
    for (std::int64_t i = range.begin; i < range.end; i += range.step) {
      use(base + static_cast<std::uint64_t>(i) * stride / 8, stride / 8);
    }
  }

  bool advance(std::vector<Index>& indices) const;
  void refuse_cut_bytes(const TensorInfo& tensor) const;

  Shape shape_;
  std::vector<std::vector<Slice>> dimensions_;  // up to and with the split, each with a range at least
  std::vector<std::uint64_t> strides_;          // in bits, of the same
  std::size_t split_ = 0;                       // the last dimension that is not whole: its ranges are the runs
  std::uint64_t offset_ = 0;
  std::uint64_t nbytes_ = 0;
  std::uint64_t count_ = 0;
  ByteRange extent_;
};

// Parts that are no single stretch of their file, by what stands for them in a selection.
using ScatteredParts = std::unordered_map<const TensorInfo*, PartRuns>;

// One range per leading dimension.
Part to_part(std::span<const Slice> slices);

}  // namespace penstock
