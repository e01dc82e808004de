#include "base/checksum.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>
#include <limits>

namespace penstock {
namespace {

// Polynomials over GF(2) of degree below 32 are held reflected, as the CRC itself is: bit 31 is the coefficient of x^0.
constexpr std::uint32_t kCastagnoli = 0x82F63B78;
constexpr std::uint32_t kZip = 0xEDB88320;
constexpr std::uint32_t kOne = 0x80000000;

// a * b mod the CRC's polynomial.
template <std::uint32_t kPolynomial>
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) noexcept {
  std::uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    product ^= b & (0U - ((a >> bit) & 1U));
    b = (b >> 1) ^ (kPolynomial & (0U - (b & 1U)));
  }
  return product;
}

// kBytePowers<polynomial>[i] is x^(8 * 2^i): what shifts a checksum past 2^i bytes.
template <std::uint32_t kPolynomial>
constexpr std::array<std::uint32_t, 64> make_byte_powers() noexcept {
  std::array<std::uint32_t, 64> powers{};
  std::uint32_t power = kOne >> 8;
  for (auto& entry : powers) {
    entry = power;
    power = multiply<kPolynomial>(power, power);
  }
  return powers;
}
template <std::uint32_t kPolynomial>
constexpr std::array<std::uint32_t, 64> kBytePowers = make_byte_powers<kPolynomial>();

// The inversions before and after cancel: crc(AB) = crc(A) * x^(8 |B|) + crc(B).
template <std::uint32_t kPolynomial>
std::uint32_t combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_length) noexcept {
  for (std::size_t i = 0; second_length != 0; ++i, second_length >>= 1) {
    if ((second_length & 1) != 0) first = multiply<kPolynomial>(kBytePowers<kPolynomial>[i], first);
  }
  return first ^ second;
}

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed) noexcept {
  // crc32_iscsi neither inverts its argument nor its result, counts in int, and takes a pointer that is not const.
  constexpr std::size_t kMostAtOnce = std::numeric_limits<int>::max() & ~std::size_t{4095};
  std::uint32_t state = ~seed;
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), kMostAtOnce));
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(part.data()));
    state = crc32_iscsi(data, static_cast<int>(part.size()), state);
    bytes = bytes.subspan(part.size());
  }
  return ~state;
}

std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_length) noexcept {
  return combine<kCastagnoli>(first, second, second_length);
}

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t seed) noexcept {
  // crc32_gzip_refl inverts both.
  return crc32_gzip_refl(seed, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_length) noexcept {
  return combine<kZip>(first, second, second_length);
}

}  // namespace penstock
