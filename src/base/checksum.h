// CRC-32C (Castagnoli), as iSCSI, ext4 and RFC 3720 define it, and CRC-32, as zip has it, at memory speed.
//
// Parts of a tensor are checksummed on different threads in any order; combine() joins them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// crc32c("123456789") == 0xE3069283. `seed` is the checksum of what came before.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0) noexcept;

// The checksum of A followed by B, from crc32c(A), crc32c(B) and the length of B.
std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_length) noexcept;

// crc32("123456789") == 0xCBF43926; otherwise as above.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t seed = 0) noexcept;
std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_length) noexcept;

}  // namespace penstock
