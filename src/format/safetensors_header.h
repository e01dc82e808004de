// The JSON part of a safetensors header, read into records. Whether they fit the file is checked in safetensors.cc.
#pragma once

#include <cstdint>
#include <string_view>

#include "format/layout.h"

namespace penstock::safetensors {

// Where the text starts in the file: after the length.
inline constexpr std::uint64_t kHeaderStart = 8;

// Tensors in order of appearance; their offsets are still relative to the data section.
// `text` is not empty and is followed by a NUL byte. Throws Error(kFormat) for bad UTF-8, bad JSON, unknown structure,
// and records whose dtype, shape and size disagree.
Layout parse_header(std::string_view text, std::string_view path);

}  // namespace penstock::safetensors
