// safetensors: `u64le N | N bytes of JSON | data`. See docs/formats/safetensors.md for the rules that are enforced.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "format/layout.h"

namespace penstock::safetensors {

inline constexpr std::uint64_t kMaxHeaderLength = 100'000'000;
inline constexpr std::string_view kMetadataKey = "__metadata__";

// True when the first bytes could only be this format: eight of a length, then '{' (after white space, which parse()
// refuses by name). The length may be wrong: then parse() says so.
bool looks_like(const ByteSource& source);

// Every type but C32 and C128.
bool has_dtype(DType dtype) noexcept;

// Reads and checks the header. Throws Error(kFormat) that names the path, the place and the rule that was broken.
Layout parse(const ByteSource& source);

// Where the data section may start: encode() pads the header with spaces so that its length + 8 is congruent to `phase`
// modulo `modulus` (a power of two, at least 8; phase is a multiple of 8). The default is what the reference writes.
struct Placement {
  std::uint64_t modulus = 8;
  std::uint64_t phase = 0;
};

// Lays out a file: tensors by dtype (from kU64 down: wider elements come first), then by name, as the reference does.
// Throws Error(kArgument) for duplicate or reserved names, bad UTF-8, sizes that disagree, and too long a header.
//
// `choose` is asked for the placement once the order is known, with the data-relative offset of each spec; without it
// the default is used. Encoding again with metadata values of the same lengths (checksums, once they are known) gives a
// prefix of the same length. `empty_metadata`: where there is no metadata, an empty object says so.
using PlacementFunction = std::function<Placement(std::span<const std::uint64_t> relative_offsets)>;
FilePlan encode(std::span<const TensorSpec> specs, const Metadata& metadata, const PlacementFunction& choose = {},
                bool empty_metadata = false);

}  // namespace penstock::safetensors
