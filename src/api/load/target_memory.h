// TargetMemory: memory of the caller's that a tensor is read into, and whose elements need not be next to each other
// (Target::byte_strides). Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "api/load/part.h"
#include "penstock/reader.h"
#include "plan/plan.h"

namespace penstock {

class TargetMemory {
 public:
  // For `shape` of `dtype`. Throws Error that names `path`: memory of another size than that takes, strides that are
  // not one positive number for each dimension, or elements of less than a byte that are apart.
  TargetMemory(const Target& target, const TensorInfo& tensor, const Shape& shape, DType dtype,
               const std::string& path);

  std::uint64_t address() const noexcept { return address_; }
  bool is_one_stretch() const noexcept { return stretches_ == 1; }
  // The most pieces that so many runs of a file make here.
  std::uint64_t most_pieces(std::uint64_t runs) const noexcept { return runs + stretches_ - 1; }

  // Calls `use(first element, how many, address)` for elements that follow each other, stretch by stretch of memory.
  template <typename Use>
  void for_each(std::uint64_t element, std::uint64_t count, const Use& use) const {
    while (count > 0) {
      const std::uint64_t length = std::min(count, run_length_ - element % run_length_);
      use(element, length, address_of(element));
      element += length;
      count -= length;
    }
  }

  // Adds the runs of a part, cut where memory is.
  void add_runs(const PartRuns& runs, std::uint32_t owner, DType from, DType to, std::vector<Segment>& segments) const;

 private:
  std::uint64_t address_of(std::uint64_t element) const noexcept;

  std::uint64_t address_;
  std::uint64_t width_ = 0;       // of an element, in bytes
  std::uint64_t run_length_ = 1;  // elements of a stretch; the outer dimensions count stretches
  std::uint64_t stretches_ = 1;
  Shape shape_;                        // of the outer dimensions
  std::vector<std::int64_t> strides_;  // theirs, in bytes
};

}  // namespace penstock
