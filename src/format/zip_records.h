// The fixed parts of a zip archive's records: signatures, sizes and flags, for its reader and its writer.
#pragma once

#include <cstdint>

namespace penstock::zip {

inline constexpr std::uint32_t kLocalSignature = 0x04034b50;
inline constexpr std::uint32_t kDescriptorSignature = 0x08074b50;
inline constexpr std::uint32_t kCentralSignature = 0x02014b50;
inline constexpr std::uint32_t kEnd64Signature = 0x06064b50;
inline constexpr std::uint32_t kLocatorSignature = 0x07064b50;
inline constexpr std::uint32_t kEndSignature = 0x06054b50;

// Without names and extra fields.
inline constexpr std::uint64_t kLocalBytes = 30;
inline constexpr std::uint64_t kDescriptorBytes = 16;
inline constexpr std::uint64_t kDescriptor64Bytes = 24;
inline constexpr std::uint64_t kCentralBytes = 46;
inline constexpr std::uint64_t kEnd64Bytes = 56;
inline constexpr std::uint64_t kLocatorBytes = 20;
inline constexpr std::uint64_t kEndBytes = 22;

inline constexpr std::uint16_t kEncryptedFlag = 0x0001;
inline constexpr std::uint16_t kDescriptorFlag = 0x0008;
inline constexpr std::uint16_t kUtf8Flag = 0x0800;
inline constexpr std::uint32_t kDirectoryAttribute = 0x10;  // of the external ones, in the directory
inline constexpr std::uint16_t kStored = 0;
inline constexpr std::uint16_t kDeflated = 8;

// In a narrow field: the value is in the zip64 field.
inline constexpr std::uint32_t kNarrow32 = 0xFFFFFFFF;
inline constexpr std::uint16_t kNarrow16 = 0xFFFF;
inline constexpr std::uint16_t kZip64Id = 0x0001;

}  // namespace penstock::zip
