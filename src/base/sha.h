// SHA-256 and SHA-1 (FIPS 180-4): the names of blobs in the Hugging Face cache, and digests that other tools know.
//
// SHA-256 uses the processor's own instructions where it has them. SHA-1 is here because git names small files by it,
// and for nothing else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace penstock {

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes) noexcept;
  // Of all that was given, as 64 lower-case hex digits. Once.
  std::string finish();

 private:
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> rest_{};  // what does not fill a block yet
  std::uint64_t length_ = 0;
};

class Sha1 {
 public:
  void update(std::span<const std::byte> bytes) noexcept;
  // 40 digits.
  std::string finish();

 private:
  std::array<std::uint32_t, 5> state_{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  std::array<std::byte, 64> rest_{};
  std::uint64_t length_ = 0;
};

// For tests: SHA-256's portable form, which a processor with the instructions for it never runs. 64 bytes each.
void sha256_blocks_portable(std::span<std::uint32_t, 8> state, const std::byte* bytes, std::size_t count) noexcept;

}  // namespace penstock
