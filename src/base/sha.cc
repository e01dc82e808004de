#include "base/sha.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/sha_x86.h"

namespace penstock {
namespace {

constexpr std::size_t kShaBlock = 64;

const bool has_instructions = has_sha_instructions();

constexpr std::uint32_t load_big_endian(const std::byte* bytes) noexcept {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = (word << 8) | std::to_integer<std::uint32_t>(bytes[i]);
  return word;
}

void sha256_blocks(std::span<std::uint32_t, 8> state, const std::byte* bytes, std::size_t count) noexcept {
  has_instructions ? sha256_blocks_x86(state, bytes, count) : sha256_blocks_portable(state, bytes, count);
}

void sha1_blocks(std::span<std::uint32_t, 5> state, const std::byte* bytes, std::size_t count) noexcept {
  for (; count > 0; --count, bytes += kShaBlock) {
    std::array<std::uint32_t, 80> w{};
    for (std::size_t t = 0; t < 16; ++t) w[t] = load_big_endian(bytes + 4 * t);
    for (std::size_t t = 16; t < 80; ++t) w[t] = std::rotl(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
    auto [a, b, c, d, e] = std::array{state[0], state[1], state[2], state[3], state[4]};
    for (std::size_t t = 0; t < 80; ++t) {
      const std::uint32_t f = t < 20   ? (b & c) | (~b & d)
                              : t < 40 ? b ^ c ^ d
                              : t < 60 ? (b & c) | (b & d) | (c & d)
                                       : b ^ c ^ d;
      const std::uint32_t k = t < 20 ? 0x5a827999 : t < 40 ? 0x6ed9eba1 : t < 60 ? 0x8f1bbcdc : 0xca62c1d6;
      const std::uint32_t next = std::rotl(a, 5) + f + e + k + w[t];
      e = d;
      d = c;
      c = std::rotl(b, 30);
      b = a;
      a = next;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
  }
}

// Fills up the block that was begun, passes whole blocks on, and keeps the rest.
template <typename Blocks>
void add_bytes(std::span<const std::byte> bytes, std::array<std::byte, kShaBlock>& rest, std::uint64_t& length,
               const Blocks& blocks) {
  const std::size_t begun = length % kShaBlock;
  length += bytes.size();
  if (begun > 0) {
    const std::size_t count = std::min(bytes.size(), kShaBlock - begun);
    std::copy_n(bytes.begin(), count, rest.begin() + static_cast<std::ptrdiff_t>(begun));
    bytes = bytes.subspan(count);
    if (begun + count < kShaBlock) return;
    blocks(rest.data(), 1);
  }
  const std::size_t whole = bytes.size() / kShaBlock;
  if (whole > 0) blocks(bytes.data(), whole);
  const auto left = bytes.subspan(whole * kShaBlock);
  std::copy(left.begin(), left.end(), rest.begin());
}

// A one bit, zeros, and the number of bits in 8 bytes: what ends the last block.
template <typename Sha>
void pad(Sha& sha, std::uint64_t length) {
  std::array<std::byte, kShaBlock + 8> padding{std::byte{0x80}};
  const std::size_t zeros = (2 * kShaBlock - 9 - length % kShaBlock) % kShaBlock;
  for (std::size_t i = 0; i < 8; ++i) padding[1 + zeros + i] = static_cast<std::byte>((length * 8) >> (56 - 8 * i));
  sha.update(std::span(padding).first(zeros + 9));
}

std::string hex_of(std::span<const std::uint32_t> words) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (const std::uint32_t word : words) {
    for (int shift = 28; shift >= 0; shift -= 4) text += kHex[(word >> shift) & 15];
  }
  return text;
}

}  // namespace

void sha256_blocks_portable(std::span<std::uint32_t, 8> state, const std::byte* bytes, std::size_t count) noexcept {
  for (; count > 0; --count, bytes += kShaBlock) {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t t = 0; t < 16; ++t) w[t] = load_big_endian(bytes + 4 * t);
    for (std::size_t t = 16; t < 64; ++t) {
      const std::uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
      const std::uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    std::array<std::uint32_t, 8> v{};
    std::copy(state.begin(), state.end(), v.begin());
    for (std::size_t t = 0; t < 64; ++t) {
      const std::uint32_t s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
      const std::uint32_t first = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + kSha256Constants[t] + w[t];
      const std::uint32_t s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
      const std::uint32_t second = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      std::copy_backward(v.begin(), v.end() - 1, v.end());
      v[4] += first;
      v[0] = first + second;
    }
    for (std::size_t i = 0; i < 8; ++i) state[i] += v[i];
  }
}

void Sha256::update(std::span<const std::byte> bytes) noexcept {
  add_bytes(bytes, rest_, length_,
            [this](const std::byte* blocks, std::size_t count) { sha256_blocks(state_, blocks, count); });
}

std::string Sha256::finish() {
  pad(*this, length_);
  return hex_of(state_);
}

void Sha1::update(std::span<const std::byte> bytes) noexcept {
  add_bytes(bytes, rest_, length_,
            [this](const std::byte* blocks, std::size_t count) { sha1_blocks(state_, blocks, count); });
}

std::string Sha1::finish() {
  pad(*this, length_);
  return hex_of(state_);
}

}  // namespace penstock
