// Conversion between floating element types, bit for bit what torch's Tensor.to does: through float, round to nearest even.
#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/dtype.h"

namespace penstock {

// Converts `count` elements; dtype_can_cast(from, to) must hold. The ranges may not overlap; neither needs any alignment.
void cast_elements(DType from, const std::byte* source, DType to, std::byte* target, std::uint64_t count) noexcept;

// Elements of a floating type that are NaN or infinite. Types that have neither count 0.
std::uint64_t count_not_finite(DType dtype, const std::byte* source, std::uint64_t count) noexcept;

}  // namespace penstock
