// How a FlashPack file ends, for its reader and its writer.
#pragma once

#include <cstddef>
#include <string_view>

namespace penstock::flashpack {

inline constexpr std::string_view kMagic{"FLASHPK\0", 8};
inline constexpr std::size_t kLengthBytes = 8;  // of the JSON, little-endian
inline constexpr std::size_t kTailBytes = kLengthBytes + kMagic.size();

}  // namespace penstock::flashpack
