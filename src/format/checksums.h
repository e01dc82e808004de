// The CRC-32C of every tensor, as text in the file's own metadata: {"penstock.crc32c": "e30692830badf00d..."}.
//
// The value is 8 lower-case hexadecimal digits per tensor, in the order of Layout::tensors (and of FilePlan::order): by
// offset, an empty tensor before the one that starts where it lies. Its length depends on the number of tensors alone,
// so a header can be laid out before the checksums are known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

inline constexpr std::string_view kChecksumKey = "penstock.crc32c";

std::string encode_checksums(std::span<const std::uint32_t> checksums);

// Nothing when `text` is not exactly `count` checksums.
std::optional<std::vector<std::uint32_t>> parse_checksums(std::string_view text, std::size_t count);

}  // namespace penstock
