#include "penstock/dtype.h"

#include <array>
#include <cctype>

namespace penstock {
namespace {

struct DTypeTraits {
  std::string_view name;
  std::string_view torch_name;
  unsigned bits;
  bool floating;
};

constexpr std::array<DTypeTraits, kDTypeCount> kTraits = {{
    {"BOOL", "bool", 8, false},
    {"F4", "float4_e2m1fn_x2", 4, true},
    {"F6_E2M3", "", 6, true},
    {"F6_E3M2", "", 6, true},
    {"U8", "uint8", 8, false},
    {"I8", "int8", 8, false},
    {"F8_E5M2", "float8_e5m2", 8, true},
    {"F8_E4M3", "float8_e4m3fn", 8, true},
    {"F8_E8M0", "float8_e8m0fnu", 8, true},
    {"F8_E4M3FNUZ", "float8_e4m3fnuz", 8, true},
    {"F8_E5M2FNUZ", "float8_e5m2fnuz", 8, true},
    {"I16", "int16", 16, false},
    {"U16", "uint16", 16, false},
    {"F16", "float16", 16, true},
    {"BF16", "bfloat16", 16, true},
    {"I32", "int32", 32, false},
    {"U32", "uint32", 32, false},
    {"F32", "float32", 32, true},
    {"C64", "complex64", 64, false},
    {"F64", "float64", 64, true},
    {"I64", "int64", 64, false},
    {"U64", "uint64", 64, false},
    {"C32", "complex32", 32, false},
    {"C128", "complex128", 128, false},
}};

struct Alias {
  std::string_view name;
  DType dtype;
};
constexpr std::array kTorchAliases = {
    Alias{"half", DType::kF16},  Alias{"float", DType::kF32},  Alias{"double", DType::kF64},
    Alias{"short", DType::kI16}, Alias{"int", DType::kI32},    Alias{"long", DType::kI64},
    Alias{"chalf", DType::kC32}, Alias{"cfloat", DType::kC64}, Alias{"cdouble", DType::kC128},
};

// What people say beside all these names, in lower case.
constexpr std::array kSpokenAliases = {
    Alias{"fp64", DType::kF64},         Alias{"fp32", DType::kF32},      Alias{"fp16", DType::kF16},
    Alias{"single", DType::kF32},       Alias{"fp8", DType::kF8E4M3},    Alias{"float8", DType::kF8E4M3},
    Alias{"fp8_e4m3", DType::kF8E4M3},  Alias{"e4m3", DType::kF8E4M3},   Alias{"fp8_e4m3fn", DType::kF8E4M3},
    Alias{"f8_e4m3fn", DType::kF8E4M3}, Alias{"e4m3fn", DType::kF8E4M3}, Alias{"float8_e4m3", DType::kF8E4M3},
    Alias{"fp8_e5m2", DType::kF8E5M2},  Alias{"e5m2", DType::kF8E5M2},   Alias{"fp8_e8m0", DType::kF8E8M0},
    Alias{"e8m0", DType::kF8E8M0},      Alias{"fp4", DType::kF4},        Alias{"byte", DType::kU8},
};

template <std::size_t kCount>
constexpr std::optional<DType> find_alias(const std::array<Alias, kCount>& aliases, std::string_view name) noexcept {
  for (const Alias& alias : aliases) {
    if (alias.name == name) return alias.dtype;
  }
  return std::nullopt;
}

std::string in_case(std::string_view text, int (*change)(int)) {
  std::string changed(text);
  for (char& c : changed) c = static_cast<char>(change(static_cast<unsigned char>(c)));
  return changed;
}

constexpr const DTypeTraits& traits(DType dtype) noexcept {
  return kTraits[static_cast<std::size_t>(dtype)];
}

static_assert(traits(DType::kF8E8M0).name == "F8_E8M0" && traits(DType::kBF16).name == "BF16" &&
              traits(DType::kU64).name == "U64" && traits(DType::kC128).name == "C128");

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

std::string_view dtype_torch_name(DType dtype) noexcept {
  return traits(dtype).torch_name;
}

std::optional<DType> parse_torch_dtype(std::string_view name) noexcept {
  if (name.empty()) return std::nullopt;
  for (std::size_t i = 0; i < kTraits.size(); ++i) {
    if (kTraits[i].torch_name == name) return static_cast<DType>(i);
  }
  return find_alias(kTorchAliases, name);
}

std::optional<DType> find_dtype(std::string_view text) {
  std::string name = in_case(text, std::tolower);
  if (constexpr std::string_view kModule = "torch."; name.starts_with(kModule)) name.erase(0, kModule.size());
  if (const auto dtype = parse_torch_dtype(name)) return dtype;
  if (const auto dtype = find_alias(kSpokenAliases, name)) return dtype;
  return parse_dtype(in_case(name, std::toupper));
}

std::string list_dtypes() {
  std::string list;
  for (const DTypeTraits& dtype : kTraits) {
    list += dtype.name;
    list += ", ";
  }
  return list + "or torch's names of them (float32, half), fp64, fp32, fp16, fp8 and fp4";
}

unsigned dtype_bits(DType dtype) noexcept {
  return traits(dtype).bits;
}

// A complex number is a pair: it must be aligned as one of the two is, but a whole element is what slices and casts
// move.
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
