// Sizes as people type and read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/export.h"

namespace PENSTOCK_EXPORT penstock {

// A number of bytes, such as "4096", "64 KiB", "1.5G" or "5GB", in any case. The one rule of options, environment
// variables, the command and Python:
//   K, M, G, T, P, E and KiB, MiB ... EiB   powers of 1024
//   KB, MB ... EB                           powers of 1000
//   B, or nothing                           bytes; only a whole number of them
// Nothing when the text is not a size, or one of 2^63 bytes and more.
std::optional<std::uint64_t> parse_size(std::string_view text) noexcept;

// "512 B", "16.0 KiB", "2.5 GiB": powers of 1024, one decimal.
std::string format_size(std::uint64_t nbytes);

}  // namespace penstock
