#include "penstock/dtype.h"

#include <array>

namespace penstock {
namespace {

struct DTypeTraits {
  std::string_view name;
  unsigned bits;
  bool floating;
};

constexpr std::array<DTypeTraits, kDTypeCount> kTraits = {{
    {"BOOL", 8, false},   {"F4", 4, true},          {"F6_E2M3", 6, true},     {"F6_E3M2", 6, true},
    {"U8", 8, false},     {"I8", 8, false},         {"F8_E5M2", 8, true},     {"F8_E4M3", 8, true},
    {"F8_E8M0", 8, true}, {"F8_E4M3FNUZ", 8, true}, {"F8_E5M2FNUZ", 8, true}, {"I16", 16, false},
    {"U16", 16, false},   {"F16", 16, true},        {"BF16", 16, true},       {"I32", 32, false},
    {"U32", 32, false},   {"F32", 32, true},        {"C64", 64, false},       {"F64", 64, true},
    {"I64", 64, false},   {"U64", 64, false},
}};

constexpr const DTypeTraits& traits(DType dtype) noexcept {
  return kTraits[static_cast<std::size_t>(dtype)];
}

static_assert(traits(DType::kF8E8M0).name == "F8_E8M0" && traits(DType::kBF16).name == "BF16" &&
              traits(DType::kU64).name == "U64");

}  // namespace

std::string_view dtype_name(DType dtype) noexcept {
  return traits(dtype).name;
}

std::optional<DType> parse_dtype(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kTraits.size(); ++i) {
    if (kTraits[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

unsigned dtype_bits(DType dtype) noexcept {
  return traits(dtype).bits;
}

// C64 is a pair of floats: it must be aligned as one of them is, but a whole element is what slices and casts move.
unsigned dtype_alignment(DType dtype) noexcept {
  const unsigned bits = traits(dtype).bits;
  return bits < 8 ? 1 : bits / 8;
}

bool dtype_is_floating(DType dtype) noexcept {
  return traits(dtype).floating;
}

bool dtype_can_cast(DType from, DType to) noexcept {
  return traits(from).floating && traits(to).floating && traits(from).bits >= 8 && traits(to).bits >= 8;
}

}  // namespace penstock
