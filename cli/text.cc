#include "text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace penstock::cli {
namespace {

struct CharacterRange {
  char32_t first;
  char32_t last;
};

// The blocks that names in practice come from; a rare script that is missing here costs one misaligned row.
constexpr std::array<CharacterRange, 12> kWide = {{{0x1100, 0x115F},
                                                   {0x2E80, 0x303E},
                                                   {0x3041, 0xA4CF},
                                                   {0xA960, 0xA97C},
                                                   {0xAC00, 0xD7A3},
                                                   {0xF900, 0xFAFF},
                                                   {0xFE30, 0xFE6F},
                                                   {0xFF00, 0xFF60},
                                                   {0xFFE0, 0xFFE6},
                                                   {0x1F300, 0x1F64F},
                                                   {0x1F680, 0x1FAFF},
                                                   {0x20000, 0x3FFFD}}};

constexpr std::array<CharacterRange, 9> kZeroWidth = {{{0x0300, 0x036F},
                                                       {0x0483, 0x0489},
                                                       {0x0591, 0x05BD},
                                                       {0x064B, 0x065F},
                                                       {0x1AB0, 0x1AFF},
                                                       {0x200B, 0x200F},
                                                       {0x20D0, 0x20FF},
                                                       {0xFE00, 0xFE0F},
                                                       {0xFE20, 0xFE2F}}};

template <std::size_t N>
bool lies_in(const std::array<CharacterRange, N>& ranges, char32_t character) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const CharacterRange& range) { return character >= range.first && character <= range.last; });
}

bool is_control(char32_t character) {
  const bool c0_or_c1 = character < 0x20 || (character >= 0x7F && character < 0xA0);
  const bool line_break = character == 0x2028 || character == 0x2029;
  const bool turns_direction =
      (character >= 0x202A && character <= 0x202E) || (character >= 0x2066 && character <= 0x2069);
  return c0_or_c1 || line_break || turns_direction;
}

std::string escape_of(char32_t character) {
  switch (character) {
    case U'\n':
      return "\\n";
    case U'\r':
      return "\\r";
    case U'\t':
      return "\\t";
    default:
      return character < 0x100 ? fmt::format("\\x{:02x}", static_cast<unsigned>(character))
                               : fmt::format("\\u{:04x}", static_cast<unsigned>(character));
  }
}

bool is_plain_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
}

std::size_t width_of(char32_t character, bool valid) {
  if (valid && lies_in(kZeroWidth, character)) return 0;
  return valid && lies_in(kWide, character) ? 2 : 1;
}

// Bytes of the longest beginning of `text` that takes at most `width` columns; at least one character.
std::size_t bytes_within(std::string_view text, std::size_t width) {
  std::size_t used = 0;
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t begin = position;
    bool valid = false;
    const char32_t character = next_character(text, position, valid);
    used += width_of(character, valid);
    if (begin > 0 && used > width) return begin;
  }
  return text.size();
}

// Where to break a word that is too long: after punctuation, but not so early that little is left on the line.
std::size_t break_within(std::string_view word, std::size_t width) {
  const std::size_t most = bytes_within(word, width);
  if (most == word.size()) return most;
  const std::size_t punctuation = word.substr(0, most).find_last_of("/._-,:");
  return punctuation == std::string_view::npos || punctuation < most / 2 ? most : punctuation + 1;
}

void add_word(std::vector<std::string>& lines, std::string_view word, std::size_t width) {
  const std::size_t used = display_width(lines.back());
  const std::size_t room = used >= width ? 0 : width - used - (used > 0 ? 1 : 0);
  if (room > 0 && bytes_within(word, room) == word.size()) {
    if (used > 0) lines.back() += ' ';
    lines.back() += word;
    return;
  }
  if (used == 0) lines.pop_back();
  while (!word.empty()) {
    const std::size_t end = break_within(word, width);
    lines.emplace_back(word.substr(0, end));
    word.remove_prefix(end);
  }
}

}  // namespace

std::vector<std::string> wrap(std::string_view text, std::size_t width) {
  width = std::max<std::size_t>(width, 1);
  if (display_width(text) <= width) return {std::string(text)};
  std::vector<std::string> lines(1);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (end > 0) add_word(lines, text.substr(0, end), width);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string shorten_middle(std::string_view text, std::size_t width, std::string_view dots) {
  const std::size_t whole = display_width(text);
  if (whole <= width || width < display_width(dots) + 2) return std::string(text);
  const std::size_t kept = width - display_width(dots);
  const std::string_view begin = text.substr(0, bytes_within(text, kept / 3));
  const std::size_t left_out = bytes_within(text, whole - (kept - display_width(begin)));
  return std::string(begin) + std::string(dots) + std::string(text.substr(left_out));
}

char32_t next_character(std::string_view text, std::size_t& position, bool& valid) {
  constexpr std::array<char32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};  // by length: refuses overlong forms
  const auto lead = static_cast<unsigned char>(text[position]);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xC0 ? 0
                             : lead < 0xE0 ? 2
                             : lead < 0xF0 ? 3
                             : lead < 0xF8 ? 4
                                           : 0;
  valid = length != 0 && position + length <= text.size();
  char32_t character = length == 1 ? lead : lead & (0x7Fu >> length);
  for (std::size_t i = 1; valid && i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[position + i]);
    valid = (byte & 0xC0) == 0x80;
    character = character << 6 | (byte & 0x3F);
  }
  const bool surrogate = character >= 0xD800 && character <= 0xDFFF;
  if (valid) valid = character >= kSmallest[length] && character <= 0x10FFFF && !surrogate;
  position += valid ? length : 1;
  return valid ? character : lead;
}

std::size_t display_width(std::string_view text) {
  if (is_plain_ascii(text)) return text.size();
  std::size_t width = 0;
  for (std::size_t position = 0; position < text.size();) {
    bool valid = false;
    const char32_t character = next_character(text, position, valid);
    width += width_of(character, valid);
  }
  return width;
}

std::string printable(std::string_view text) {
  if (is_plain_ascii(text)) return std::string(text);
  std::string out;
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t start = position;
    bool valid = false;
    const char32_t character = next_character(text, position, valid);
    if (!valid || is_control(character)) {
      out += escape_of(character);
    } else {
      out += text.substr(start, position - start);
    }
  }
  return out;
}

}  // namespace penstock::cli
