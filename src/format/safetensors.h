// safetensors: `u64le N | N bytes of JSON | data`. See docs/formats/safetensors.md for the rules that are enforced.
#pragma once

#include <cstdint>
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

// Lays out a file: tensors by dtype (from kU64 down: wider elements come first), then by name, as the reference does.
// Throws Error(kArgument) for duplicate or reserved names, bad UTF-8, sizes that disagree, and too long a header.
//
// Encoding again with metadata values of the same lengths (checksums, once they are known) gives a prefix of the same
// length. `empty_metadata`: where there is no metadata, an empty object says so.
FilePlan encode(std::span<const TensorSpec> specs, const Metadata& metadata, bool empty_metadata = false);

}  // namespace penstock::safetensors
