// Row-major bytes of a tensor whose elements are not next to each other in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// True when the elements of `shape` already lie in row-major order without gaps.
bool is_contiguous(std::span<const std::int64_t> shape, std::span<const std::int64_t> byte_strides,
                   std::uint64_t width);

// Reads any range of the row-major form. Immutable, so safe from several threads; the memory is borrowed.
class StridedReader {
 public:
  StridedReader(const std::byte* data, std::vector<std::int64_t> shape, std::vector<std::int64_t> byte_strides,
                std::uint64_t width);

  // `offset` and the length are multiples of the element width.
  void read(std::uint64_t offset, std::span<std::byte> bytes) const;

 private:
  const std::byte* data_;
  std::vector<std::int64_t> shape_;    // outer dimensions
  std::vector<std::int64_t> strides_;  // theirs, in bytes
  std::int64_t run_length_ = 1;        // elements of the innermost dimension
  std::int64_t run_stride_ = 0;        // in bytes
  std::uint64_t width_;
};

}  // namespace penstock
