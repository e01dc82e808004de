// Every conversion goes through a block of floats on the stack that stays in the L1 cache: one loop per type and
// direction instead of one per pair. Each loop is compiled twice on x86-64, for any processor and for those with AVX2.
#include "base/cast.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/minifloat.h"

#if defined(__x86_64__)
#define PENSTOCK_WIDE [[gnu::target("avx2")]]
#else
#define PENSTOCK_WIDE
#endif

namespace penstock {
namespace {

constexpr std::size_t kBlockElements = 1024;

bool processor_is_wide() noexcept {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") != 0;
#else
  return false;
#endif
}

// The pointers need no alignment: elements are loaded and stored by memcpy, which compilers turn into vector moves.
template <typename From, typename To, auto Convert>
[[gnu::always_inline]] inline void convert_all(const std::byte* __restrict source, std::byte* __restrict target,
                                               std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    From from;
    std::memcpy(&from, source + i * sizeof(From), sizeof(From));
    const To to = Convert(from);
    std::memcpy(target + i * sizeof(To), &to, sizeof(To));
  }
}

template <typename From, typename To, auto Convert>
void convert_anywhere(const std::byte* source, std::byte* target, std::size_t count) noexcept {
  convert_all<From, To, Convert>(source, target, count);
}

template <typename From, typename To, auto Convert>
PENSTOCK_WIDE void convert_wide(const std::byte* source, std::byte* target, std::size_t count) noexcept {
  convert_all<From, To, Convert>(source, target, count);
}

struct Loop {
  void (*anywhere)(const std::byte*, std::byte*, std::size_t) noexcept = nullptr;
  void (*wide)(const std::byte*, std::byte*, std::size_t) noexcept = nullptr;

  auto on(bool wide_processor) const noexcept { return wide_processor ? wide : anywhere; }
};

template <typename From, typename To, auto Convert>
constexpr Loop kLoop{convert_anywhere<From, To, Convert>, convert_wide<From, To, Convert>};

[[gnu::always_inline]] inline std::uint32_t double_to_float(std::uint64_t bits) noexcept {
  return __builtin_bit_cast(std::uint32_t, static_cast<float>(__builtin_bit_cast(double, bits)));
}
[[gnu::always_inline]] inline std::uint64_t float_to_double(std::uint32_t bits) noexcept {
  return __builtin_bit_cast(std::uint64_t, static_cast<double>(__builtin_bit_cast(float, bits)));
}

// Eight-bit types are widened by table.
template <auto Convert>
constexpr std::array<std::uint32_t, 256> make_table() noexcept {
  std::array<std::uint32_t, 256> table{};
  for (unsigned code = 0; code < 256; ++code) table[code] = Convert(static_cast<std::uint8_t>(code));
  return table;
}
template <auto Convert>
constexpr std::array<std::uint32_t, 256> kTable = make_table<Convert>();
template <auto Convert>
[[gnu::always_inline]] inline std::uint32_t look_up(std::uint8_t code) noexcept {
  return kTable<Convert>[code];
}

Loop loop_to_float(DType from) noexcept {
  using namespace minifloat;
  switch (from) {
    case DType::kF64:
      return kLoop<std::uint64_t, std::uint32_t, double_to_float>;
    case DType::kF16:
      return kLoop<std::uint16_t, std::uint32_t, half_to_float>;
    case DType::kBF16:
      return kLoop<std::uint16_t, std::uint32_t, bfloat16_to_float>;
    case DType::kF8E5M2:
      return kLoop<std::uint8_t, std::uint32_t, look_up<e5m2_to_float>>;
    case DType::kF8E4M3:
      return kLoop<std::uint8_t, std::uint32_t, look_up<e4m3_to_float>>;
    case DType::kF8E8M0:
      return kLoop<std::uint8_t, std::uint32_t, look_up<e8m0_to_float>>;
    case DType::kF8E4M3FNUZ:
      return kLoop<std::uint8_t, std::uint32_t, look_up<fnuz_to_float<3, 8>>>;
    case DType::kF8E5M2FNUZ:
      return kLoop<std::uint8_t, std::uint32_t, look_up<fnuz_to_float<2, 16>>>;
    default:
      return {};
  }
}

// `from` matters for one thing: torch makes another NaN when it narrows a float or a double to bfloat16.
Loop loop_from_float(DType from, DType to) noexcept {
  using namespace minifloat;
  switch (to) {
    case DType::kF64:
      return kLoop<std::uint32_t, std::uint64_t, float_to_double>;
    case DType::kF16:
      return kLoop<std::uint32_t, std::uint16_t, float_to_half>;
    case DType::kBF16:
      return from == DType::kF32 || from == DType::kF64
                 ? kLoop<std::uint32_t, std::uint16_t, float_to_bfloat16<0xFFFF>>
                 : kLoop<std::uint32_t, std::uint16_t, float_to_bfloat16<0x7FC0>>;
    case DType::kF8E5M2:
      return kLoop<std::uint32_t, std::uint8_t, float_to_e5m2>;
    case DType::kF8E4M3:
      return kLoop<std::uint32_t, std::uint8_t, float_to_e4m3>;
    case DType::kF8E8M0:
      return kLoop<std::uint32_t, std::uint8_t, float_to_e8m0>;
    case DType::kF8E4M3FNUZ:
      return kLoop<std::uint32_t, std::uint8_t, float_to_fnuz<3, 8>>;
    case DType::kF8E5M2FNUZ:
      return kLoop<std::uint32_t, std::uint8_t, float_to_fnuz<2, 16>>;
    default:
      return {};
  }
}

template <typename Element, auto IsNotFinite>
std::uint64_t count_if(const std::byte* source, std::uint64_t count) noexcept {
  std::uint64_t found = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, source + i * sizeof(Element), sizeof(Element));
    found += IsNotFinite(element) ? 1 : 0;
  }
  return found;
}

template <typename Element, Element Exponent>
constexpr bool has_full_exponent(Element element) noexcept {
  return (element & Exponent) == Exponent;
}
constexpr bool is_not_finite_complex(std::uint64_t pair) noexcept {
  return has_full_exponent<std::uint64_t, minifloat::kInfinity>(pair) ||
         has_full_exponent<std::uint64_t, std::uint64_t{minifloat::kInfinity} << 32>(pair);
}
constexpr bool is_not_finite_half_complex(std::uint32_t pair) noexcept {
  return has_full_exponent<std::uint32_t, 0x7C00>(pair) || has_full_exponent<std::uint32_t, 0x7C000000>(pair);
}
constexpr bool is_not_finite_double_complex(const std::array<std::uint64_t, 2>& pair) noexcept {
  return has_full_exponent<std::uint64_t, 0x7FF0000000000000>(pair[0]) ||
         has_full_exponent<std::uint64_t, 0x7FF0000000000000>(pair[1]);
}
constexpr bool is_not_finite_e4m3(std::uint8_t code) noexcept {
  return (code & 0x7F) == 0x7F;
}
constexpr bool is_not_finite_e8m0(std::uint8_t code) noexcept {
  return code == 0xFF;
}
constexpr bool is_not_finite_fnuz(std::uint8_t code) noexcept {
  return code == 0x80;
}

void cast_on(bool wide_processor, DType from, const std::byte* source, DType to, std::byte* target,
             std::uint64_t count) noexcept {
  if (count == 0) return;
  const std::size_t source_width = dtype_bits(from) / 8;
  const std::size_t target_width = dtype_bits(to) / 8;
  if (from == to) {
    std::memcpy(target, source, count * source_width);
    return;
  }
  const auto widen = loop_to_float(from).on(wide_processor);
  const auto narrow = loop_from_float(from, to).on(wide_processor);
  if (from == DType::kF32) return narrow(source, target, count);
  if (to == DType::kF32) return widen(source, target, count);
  std::array<std::byte, kBlockElements * sizeof(float)> floats;
  while (count > 0) {
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(count, kBlockElements));
    widen(source, floats.data(), part);
    narrow(floats.data(), target, part);
    source += part * source_width;
    target += part * target_width;
    count -= part;
  }
}

const bool wide_processor = processor_is_wide();

}  // namespace

void cast_elements(DType from, const std::byte* source, DType to, std::byte* target, std::uint64_t count) noexcept {
  cast_on(wide_processor, from, source, to, target, count);
}

void cast_elements_portably(DType from, const std::byte* source, DType to, std::byte* target,
                            std::uint64_t count) noexcept {
  cast_on(false, from, source, to, target, count);
}

std::uint64_t count_not_finite(DType dtype, const std::byte* source, std::uint64_t count) noexcept {
  switch (dtype) {
    case DType::kF64:
      return count_if<std::uint64_t, has_full_exponent<std::uint64_t, 0x7FF0000000000000>>(source, count);
    case DType::kF32:
      return count_if<std::uint32_t, has_full_exponent<std::uint32_t, 0x7F800000>>(source, count);
    case DType::kC64:
      return count_if<std::uint64_t, is_not_finite_complex>(source, count);
    case DType::kC32:
      return count_if<std::uint32_t, is_not_finite_half_complex>(source, count);
    case DType::kC128:
      return count_if<std::array<std::uint64_t, 2>, is_not_finite_double_complex>(source, count);
    case DType::kF16:
      return count_if<std::uint16_t, has_full_exponent<std::uint16_t, 0x7C00>>(source, count);
    case DType::kBF16:
      return count_if<std::uint16_t, has_full_exponent<std::uint16_t, 0x7F80>>(source, count);
    case DType::kF8E5M2:
      return count_if<std::uint8_t, has_full_exponent<std::uint8_t, 0x7C>>(source, count);
    case DType::kF8E4M3:
      return count_if<std::uint8_t, is_not_finite_e4m3>(source, count);
    case DType::kF8E8M0:
      return count_if<std::uint8_t, is_not_finite_e8m0>(source, count);
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2FNUZ:
      return count_if<std::uint8_t, is_not_finite_fnuz>(source, count);
    default:
      return 0;
  }
}

}  // namespace penstock
