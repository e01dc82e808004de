// DType: the element types that a file can hold. Names and widths are those of the safetensors format; C32 and C128,
// which it lacks, are named in its manner.
//
// F4 and the F6 types are narrower than a byte: elements are packed, and a tensor of them must fill whole bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/export.h"

namespace PENSTOCK_EXPORT penstock {

enum class DType : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3FNUZ,
  kF8E5M2FNUZ,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
  kC32,  // from here on: not in safetensors
  kC128,
};

inline constexpr int kDTypeCount = static_cast<int>(DType::kC128) + 1;

// "F32", "BF16", "F8_E4M3" ...
std::string_view dtype_name(DType dtype) noexcept;

// The inverse of dtype_name; nothing for a name that is not one.
std::optional<DType> parse_dtype(std::string_view name) noexcept;

// torch's name: "float32", "bfloat16", "float8_e4m3fn" ... Empty for the F6 types, which torch does not have.
std::string_view dtype_torch_name(DType dtype) noexcept;

// The inverse of dtype_torch_name; takes torch's other names ("half", "long") too.
std::optional<DType> parse_torch_dtype(std::string_view name) noexcept;

// What people type, in upper or lower case: a name of either kind, "torch.float32", "fp32", "half", "fp8" (E4M3) ...
// Nothing for what is none; files spell their types exactly, which the two functions above insist on.
std::optional<DType> find_dtype(std::string_view text);

// All that find_dtype takes, for a message: the names of files, and the short ones.
std::string list_dtypes();

// Width of one element in bits: 4, 6, 8, 16, 32, 64 or 128.
unsigned dtype_bits(DType dtype) noexcept;

// Width of one element in bytes, at least 1: what a pointer to it must be aligned to.
unsigned dtype_alignment(DType dtype) noexcept;

// True for the types that hold real floating-point numbers (not complex, not integers).
bool dtype_is_floating(DType dtype) noexcept;

// True when elements of `from` can be converted to `to` by LoadOptions::dtype and convert().
// Both must be floating types of at least 8 bits.
bool dtype_can_cast(DType from, DType to) noexcept;

}  // namespace penstock
