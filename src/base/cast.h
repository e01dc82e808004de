// Conversion between floating element types, bit for bit what torch's Tensor.to does: through float, to nearest even.
//
// What does not fit becomes infinity where the type has one (F16, BF16, F8_E5M2), the largest value in F8_E4M3, NaN in
// F8_E8M0 and the FNUZ types. torch's own NaNs differ between processors and even between the middle and the end of a
// tensor; these are the ones of its vector code on x86-64. tests/data/casts.txt holds what torch made of every type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/dtype.h"

namespace penstock {

// Converts `count` elements; dtype_can_cast(from, to) must hold. The ranges may not overlap, and may be misaligned.
void cast_elements(DType from, const std::byte* source, DType to, std::byte* target, std::uint64_t count) noexcept;

// What cast_elements does on processors that have no code of their own here. For the test that compares the two.
void cast_elements_portably(DType from, const std::byte* source, DType to, std::byte* target,
                            std::uint64_t count) noexcept;

// Elements of a floating or complex type that are NaN or infinite. Types that have neither count 0.
std::uint64_t count_not_finite(DType dtype, const std::byte* source, std::uint64_t count) noexcept;

}  // namespace penstock
