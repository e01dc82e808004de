// Sizes, alignment and checked arithmetic on byte counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace penstock {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

// `alignment` is a power of two.
constexpr std::uint64_t align_down(std::uint64_t value, std::uint64_t alignment) noexcept {
  return value & ~(alignment - 1);
}
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) noexcept {
  return align_down(value + alignment - 1, alignment);
}
constexpr bool is_aligned(std::uint64_t value, std::uint64_t alignment) noexcept {
  return (value & (alignment - 1)) == 0;
}

// Nothing when the result does not fit.
constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}
constexpr std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// A half-open range of bytes in a file.
struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  constexpr std::uint64_t size() const noexcept { return end - begin; }
  friend constexpr bool operator==(const ByteRange&, const ByteRange&) = default;
};

}  // namespace penstock
