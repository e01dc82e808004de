#include "format/checksums.h"

namespace penstock {
namespace {

constexpr std::size_t kDigits = 8;

// -1 for anything but a lower-case digit.
constexpr int digit_value(char digit) noexcept {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  return -1;
}

std::optional<std::uint32_t> parse_checksum(std::string_view digits) noexcept {
  std::uint32_t checksum = 0;
  for (const char digit : digits) {
    const int value = digit_value(digit);
    if (value < 0) return std::nullopt;
    checksum = (checksum << 4) | static_cast<std::uint32_t>(value);
  }
  return checksum;
}

}  // namespace

std::string encode_checksums(std::span<const std::uint32_t> checksums) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  text.reserve(checksums.size() * kDigits);
  for (const std::uint32_t checksum : checksums) {
    for (int shift = 28; shift >= 0; shift -= 4) text += kHex[(checksum >> shift) & 15];
  }
  return text;
}

std::optional<std::vector<std::uint32_t>> parse_checksums(std::string_view text, std::size_t count) {
  if (text.size() % kDigits != 0 || text.size() / kDigits != count) return std::nullopt;
  std::vector<std::uint32_t> checksums;
  checksums.reserve(count);
  for (std::size_t i = 0; i < text.size(); i += kDigits) {
    const auto checksum = parse_checksum(text.substr(i, kDigits));
    if (!checksum) return std::nullopt;
    checksums.push_back(*checksum);
  }
  return checksums;
}

}  // namespace penstock
