// One element at a time: between the bits of a float and those of the narrower floating types.
//
// Every function is free of branches and of table look-ups, so that a loop around it becomes vector code. Rounding is
// to nearest, ties to even. What happens to NaN, overflow and negative zero is what torch does (see cast.h).
#pragma once

#include <cstdint>

namespace penstock::minifloat {

inline constexpr std::uint32_t kSign = 0x80000000;
inline constexpr std::uint32_t kInfinity = 0x7F800000;
inline constexpr std::uint32_t kQuietBit = 0x00400000;

// `condition ? yes : no`, spelled so that no compiler makes a branch of it and moves a floating-point addition (which
// may trap) behind it: that would keep the loop scalar.
[[gnu::always_inline]] constexpr std::uint32_t select(bool condition, std::uint32_t yes, std::uint32_t no) noexcept {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

// The sum of two floats given by their bits.
[[gnu::always_inline]] constexpr std::uint32_t add(std::uint32_t a, std::uint32_t b) noexcept {
  return __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, a) + __builtin_bit_cast(float, b));
}

// The magnitude (no sign) of a float, rounded to a type with `MantissaBits` and `Bias`: its exponent and mantissa in
// the low bits. The result of a magnitude that is too large, infinite or NaN is larger than any finite code.
template <unsigned MantissaBits, std::uint32_t Bias>
[[gnu::always_inline]] constexpr std::uint32_t round_magnitude(std::uint32_t magnitude) noexcept {
  constexpr unsigned kShift = 23 - MantissaBits;
  constexpr std::uint32_t kSmallestNormal = (127 - Bias + 1) << 23;
  // A float whose last mantissa bit is worth as much as the target's: adding it makes the hardware round a subnormal.
  constexpr std::uint32_t kMagic = (127 + 24 - Bias - MantissaBits) << 23;
  const std::uint32_t subnormal = add(magnitude, kMagic) - kMagic;
  const std::uint32_t odd = (magnitude >> kShift) & 1;
  const std::uint32_t normal = (magnitude - ((127 - Bias) << 23) + (1U << (kShift - 1)) - 1 + odd) >> kShift;
  return select(magnitude < kSmallestNormal, subnormal, normal);
}

// The float that a code (no sign) of such a type stands for, if the type had no infinities and NaNs. Exact.
template <unsigned MantissaBits, std::uint32_t Bias>
[[gnu::always_inline]] constexpr std::uint32_t widen_magnitude(std::uint32_t code) noexcept {
  constexpr std::uint32_t kSmallestNormal = (127 - Bias + 1) << 23;
  const std::uint32_t shifted = code << (23 - MantissaBits);
  const std::uint32_t normal = shifted + ((127 - Bias) << 23);
  const std::uint32_t subnormal = add(shifted + kSmallestNormal, kSmallestNormal | kSign);
  return select(code < (1U << MantissaBits), subnormal, normal);
}

[[gnu::always_inline]] constexpr std::uint16_t float_to_half(std::uint32_t bits) noexcept {
  const std::uint32_t magnitude = bits & ~kSign;
  const std::uint32_t rounded = round_magnitude<10, 15>(magnitude);
  const std::uint32_t finite = select(rounded < 0x7C00, rounded, 0x7C00);
  const std::uint32_t nan = 0x7E00 | ((magnitude >> 13) & 0x3FF);
  const std::uint32_t code = select(magnitude > kInfinity, nan, finite);
  return static_cast<std::uint16_t>(code | ((bits & kSign) >> 16));
}

[[gnu::always_inline]] constexpr std::uint32_t half_to_float(std::uint16_t half) noexcept {
  const std::uint32_t code = half & 0x7FFFU;
  const std::uint32_t finite = widen_magnitude<10, 15>(code);
  const std::uint32_t special = kInfinity | (code << 13) | (code > 0x7C00 ? kQuietBit : 0);
  return select(code < 0x7C00, finite, special) | ((half & 0x8000U) << 16);
}

template <std::uint16_t Nan>
[[gnu::always_inline]] constexpr std::uint16_t float_to_bfloat16(std::uint32_t bits) noexcept {
  const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  return static_cast<std::uint16_t>(select((bits & ~kSign) > kInfinity, Nan, rounded));
}

[[gnu::always_inline]] constexpr std::uint32_t bfloat16_to_float(std::uint16_t code) noexcept {
  return static_cast<std::uint32_t>(code) << 16;
}

// F8_E5M2: infinities at 0x7C, NaN above.
[[gnu::always_inline]] constexpr std::uint8_t float_to_e5m2(std::uint32_t bits) noexcept {
  const std::uint32_t magnitude = bits & ~kSign;
  const std::uint32_t rounded = round_magnitude<2, 15>(magnitude);
  const std::uint32_t finite = select(rounded < 0x7C, rounded, 0x7C);
  const std::uint32_t code = select(magnitude > kInfinity, 0x7F, finite);
  return static_cast<std::uint8_t>(code | ((bits & kSign) >> 24));
}

[[gnu::always_inline]] constexpr std::uint32_t e5m2_to_float(std::uint8_t code) noexcept {
  return half_to_float(static_cast<std::uint16_t>(code << 8));
}

// F8_E4M3: no infinities; 0x7F and 0xFF are NaN. What is too large, infinity included, becomes the largest, 448.
[[gnu::always_inline]] constexpr std::uint8_t float_to_e4m3(std::uint32_t bits) noexcept {
  const std::uint32_t magnitude = bits & ~kSign;
  const std::uint32_t rounded = round_magnitude<3, 7>(magnitude);
  const std::uint32_t finite = select(rounded < 0x7E, rounded, 0x7E);
  const std::uint32_t code = select(magnitude > kInfinity, 0x7F, finite);
  return static_cast<std::uint8_t>(code | ((bits & kSign) >> 24));
}

[[gnu::always_inline]] constexpr std::uint32_t e4m3_to_float(std::uint8_t byte) noexcept {
  const std::uint32_t code = byte & 0x7FU;
  const std::uint32_t magnitude = code == 0x7F ? 0x7FF00000 : widen_magnitude<3, 7>(code);
  return magnitude | ((byte & 0x80U) << 24);
}

// The FNUZ types have one zero, one NaN (0x80) and no infinities.
template <unsigned MantissaBits, std::uint32_t Bias>
[[gnu::always_inline]] constexpr std::uint8_t float_to_fnuz(std::uint32_t bits) noexcept {
  const std::uint32_t rounded = round_magnitude<MantissaBits, Bias>(bits & ~kSign);
  const std::uint32_t sign = rounded == 0 ? 0 : (bits & kSign) >> 24;
  return static_cast<std::uint8_t>(rounded > 0x7F ? 0x80 : rounded | sign);
}

template <unsigned MantissaBits, std::uint32_t Bias>
[[gnu::always_inline]] constexpr std::uint32_t fnuz_to_float(std::uint8_t byte) noexcept {
  const std::uint32_t magnitude = widen_magnitude<MantissaBits, Bias>(byte & 0x7FU);
  return byte == 0x80 ? kInfinity | 1 : magnitude | ((byte & 0x80U) << 24);
}

// F8_E8M0: a power of two, 2^(code - 127), without sign or zero; 0xFF is NaN, and so is what is too large.
// Zero and what is too small become the smallest; there a tie goes down, elsewhere up.
[[gnu::always_inline]] constexpr std::uint8_t float_to_e8m0(std::uint32_t bits) noexcept {
  const std::uint32_t exponent = (bits >> 23) & 0xFF;
  const std::uint32_t mantissa = bits & 0x007FFFFF;
  const std::uint32_t tie_goes_up = exponent > 0 ? 0 : 1;
  const std::uint32_t up = mantissa >= kQuietBit + tie_goes_up ? 1 : 0;
  return static_cast<std::uint8_t>(exponent == 0xFF ? 0xFF : exponent + up);
}

[[gnu::always_inline]] constexpr std::uint32_t e8m0_to_float(std::uint8_t code) noexcept {
  const std::uint32_t normal = static_cast<std::uint32_t>(code) << 23;
  const std::uint32_t not_nan = code == 0 ? kQuietBit : normal;
  return code == 0xFF ? kInfinity | 1 : not_nan;
}

}  // namespace penstock::minifloat
