// Seal: the manifest that `penstock seal` writes beside a file, "model.safetensors.seal.json": the CRC-32C of every
// block and of every tensor, and on request the SHA-256 of the whole file. See docs/formats/seal.md.
//
// A seal names no file: it belongs to the one that it lies beside, so that both can be renamed together and nothing in
// a seal leads anywhere.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "format/layout.h"

namespace penstock {

inline constexpr std::uint64_t kSealBlockSize = kMiB;
inline constexpr std::uint64_t kSmallestSealBlock = 512;
inline constexpr std::uint64_t kLargestSealBlock = kGiB;
inline constexpr std::uint64_t kMaxSealSize = 100'000'000;  // bytes of text

struct SealedTensor {
  std::string name;
  DType dtype = DType::kU8;
  Shape shape;
  std::vector<std::int64_t> byte_strides;  // as TensorInfo has them
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;  // in the file: from its first byte to its last
  std::uint32_t crc32c = 0;  // of all of these

  ByteRange range() const noexcept { return {offset, offset + nbytes}; }
  // Whether it is this tensor, by everything but the checksum.
  bool describes(const TensorInfo& tensor) const noexcept;
};

struct Seal {
  std::uint64_t size = 0;  // of the file
  std::string sha256;      // 64 hex digits; empty: none
  std::uint64_t block_size = kSealBlockSize;
  std::vector<std::uint32_t> blocks;  // CRC-32C of each; the last one may be shorter
  std::vector<SealedTensor> tensors;

  ByteRange block(std::size_t number) const noexcept;
  const SealedTensor* find(std::string_view name) const noexcept;
};

// "model.safetensors" -> "model.safetensors.seal.json".
std::string seal_file_name(std::string_view file_name);
// The file that a seal of this name is of; the name itself where it is no seal's.
std::string_view sealed_file_name(std::string_view name) noexcept;

std::uint64_t count_blocks(std::uint64_t size, std::uint64_t block_size) noexcept;
constexpr bool is_seal_block_size(std::uint64_t size) noexcept {
  return size >= kSmallestSealBlock && size <= kLargestSealBlock && (size & (size - 1)) == 0;
}

// The text of a seal: the same for equal seals. Names and sha256 are valid.
std::string encode_seal(const Seal& seal);

// Throws Error(kFormat) that names the byte, or Error(kUnsupportedFormat) for a later version.
Seal parse_seal(const ByteSource& source);

}  // namespace penstock
