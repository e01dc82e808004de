// Which format a file is in, by its bytes; and which a new file should be in, by its suffix.
#pragma once

#include <string>
#include <string_view>

#include "format/layout.h"

namespace penstock {

// Detects the format and parses the file. Throws Error(kFormat) that says what the bytes look like when no format fits
// (an empty file, a pickle, a zip, HTML, a Git LFS pointer ...).
Layout parse_layout(const ByteSource& source);

// The format for a new file: `requested` if not empty, else by the suffix of `path`. Throws Error(kArgument).
std::string format_for_save(std::string_view requested, std::string_view path);

}  // namespace penstock
