#include "base/json.h"

#include <simdjson.h>

#include <array>
#include <charconv>

namespace penstock {
namespace {

struct Lead {
  std::size_t length;           // of the whole sequence; 0 for a byte that starts none
  unsigned char lowest_second;  // what the second byte may be; later ones are 0x80 to 0xBF
  unsigned char highest_second;
};

constexpr Lead lead_of(unsigned char byte) noexcept {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Length of the valid sequence at the front of `text`, or 0.
std::size_t sequence_length(std::string_view text) noexcept {
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  if (lead.length < 2) return lead.length;
  if (text.size() < lead.length) return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  if (second < lead.lowest_second || second > lead.highest_second) return 0;
  for (std::size_t i = 2; i < lead.length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 0;
  }
  return lead.length;
}

constexpr bool needs_escape(char character) noexcept {
  return static_cast<unsigned char>(character) < 0x20 || character == '"' || character == '\\';
}

void append_escape(std::string& out, char character) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '\\';
  switch (character) {
    case '"':
    case '\\':
      out += character;
      return;
    case '\b':
      out += 'b';
      return;
    case '\f':
      out += 'f';
      return;
    case '\n':
      out += 'n';
      return;
    case '\r':
      out += 'r';
      return;
    case '\t':
      out += 't';
      return;
    default:
      out += "u00";
      out += kHex[static_cast<unsigned char>(character) >> 4];
      out += kHex[static_cast<unsigned char>(character) & 15];
  }
}

}  // namespace

std::optional<std::size_t> find_invalid_utf8(std::string_view text) noexcept {
  if (simdjson::validate_utf8(text.data(), text.size())) return std::nullopt;
  std::size_t i = 0;
  while (i < text.size()) {
    const std::size_t length = sequence_length(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  std::size_t plain = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!needs_escape(text[i])) continue;
    out.append(text, plain, i - plain);
    append_escape(out, text[i]);
    plain = i + 1;
  }
  out.append(text, plain);
  out += '"';
}

void append_json_number(std::string& out, std::uint64_t number) {
  std::array<char, 20> digits;
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  out.append(digits.data(), result.ptr);
}

}  // namespace penstock
