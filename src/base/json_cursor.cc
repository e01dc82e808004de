#include "base/json_cursor.h"

#include <array>

#include "base/error.h"

namespace penstock {
namespace {

// True for what can't stand in a string as it is: the quote, the backslash and control characters (NUL ends the text).
constexpr std::array<bool, 256> make_stops() noexcept {
  std::array<bool, 256> stops{};
  for (std::size_t i = 0; i < 0x20; ++i) stops[i] = true;
  stops['"'] = true;
  stops['\\'] = true;
  return stops;
}
constexpr std::array<bool, 256> kStops = make_stops();

constexpr bool is_digit(char character) noexcept {
  return character >= '0' && character <= '9';
}

constexpr bool is_number_character(char character) noexcept {
  return is_digit(character) || character == '-' || character == '+' || character == '.' || character == 'e' ||
         character == 'E';
}

constexpr bool is_high_surrogate(std::uint32_t unit) noexcept {
  return unit >= 0xD800 && unit < 0xDC00;
}
constexpr bool is_low_surrogate(std::uint32_t unit) noexcept {
  return unit >= 0xDC00 && unit < 0xE000;
}

void append_utf8(std::string& out, std::uint32_t code_point) {
  const auto continuation = [&](int shift) { return static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0 | (code_point >> 6));
    out += continuation(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0 | (code_point >> 12));
    out += continuation(6);
    out += continuation(0);
  } else {
    out += static_cast<char>(0xF0 | (code_point >> 18));
    out += continuation(12);
    out += continuation(6);
    out += continuation(0);
  }
}

}  // namespace

std::string_view JsonCursor::string(std::string& scratch) {
  expect('"');
  const char* begin = next_;
  while (!kStops[static_cast<unsigned char>(*next_)]) ++next_;
  if (*next_ != '"') return string_with_escapes(begin, scratch);
  return {begin, static_cast<std::size_t>(next_++ - begin)};
}

std::string_view JsonCursor::string_with_escapes(const char* begin, std::string& scratch) {
  scratch.assign(begin, next_);
  while (*next_ != '"') {
    if (next_ == end_) fail("the text ends inside a string");
    if (*next_ == '\\') {
      ++next_;
      append_escape(scratch);
    } else if (static_cast<unsigned char>(*next_) < 0x20) {
      fail(fmt::format("a string holds the control character 0x{:02x}, which must be escaped", *next_));
    } else {
      scratch += *next_++;
    }
  }
  ++next_;
  return scratch;
}

void JsonCursor::append_escape(std::string& scratch) {
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const char name = *next_;
  if (const std::size_t i = kNames.find(name); i != std::string_view::npos) {
    ++next_;
    scratch += kMeanings[i];
    return;
  }
  if (name != 'u') fail("a backslash is not followed by a known escape");
  ++next_;
  const std::uint32_t unit = hex_digits();
  if (!is_high_surrogate(unit)) {
    if (is_low_surrogate(unit)) fail("an escaped low surrogate without a high one before it");
    return append_utf8(scratch, unit);
  }
  if (next_[0] != '\\' || next_[1] != 'u') fail("an escaped high surrogate without a low one after it");
  next_ += 2;
  const std::uint32_t low = hex_digits();
  if (!is_low_surrogate(low)) fail("an escaped high surrogate without a low one after it");
  append_utf8(scratch, 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00));
}

std::uint32_t JsonCursor::hex_digits() {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char digit = *next_;
    const char lower = static_cast<char>(digit | 0x20);
    if (is_digit(digit)) {
      value = (value << 4) | static_cast<std::uint32_t>(digit - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      value = (value << 4) | static_cast<std::uint32_t>(lower - 'a' + 10);
    } else {
      fail("\\u is not followed by four hexadecimal digits");
    }
    ++next_;
  }
  return value;
}

std::uint64_t JsonCursor::integer() {
  constexpr const char* kExpected = "expected an integer from 0 to 2^64 - 1, found {}";
  peek();
  const char* digits = next_;
  std::uint64_t value = 0;
  bool fits = true;
  while (is_digit(*digits)) {
    const auto digit = static_cast<std::uint64_t>(*digits++ - '0');
    fits = fits && !__builtin_mul_overflow(value, 10U, &value) && !__builtin_add_overflow(value, digit, &value);
  }
  const bool leading_zero = *next_ == '0' && digits - next_ > 1;
  if (digits == next_ || !fits || leading_zero || is_number_character(*digits)) {
    fail(fmt::format(fmt::runtime(kExpected), describe_next()));
  }
  next_ = digits;
  return value;
}

std::string JsonCursor::describe_next() {
  constexpr std::size_t kLongestToken = 40;
  switch (peek()) {
    case '{':
      return "an object";
    case '[':
      return "an array";
    case '"':
      return "a string";
    case '\0':
      if (next_ == end_) return "the end of the text";
      break;
    default:
      break;
  }
  const char* token = next_;
  while (token != end_ && static_cast<std::size_t>(token - next_) < kLongestToken &&
         (is_number_character(*token) || (*token >= 'a' && *token <= 'z'))) {
    ++token;
  }
  const std::string_view text(next_, static_cast<std::size_t>(token - next_));
  if (text == "null" || text == "true" || text == "false" || (!text.empty() && is_number_character(text[0]))) {
    return std::string(text);
  }
  return text.empty() ? in_quotes(std::string_view(next_, 1)) : in_quotes(text);
}

void JsonCursor::fail(std::string_view message) const {
  throw_format(path_, "byte {}: {}", byte(), message);
}

void JsonCursor::fail_expected_character(char character) {
  fail(fmt::format("expected '{}', found {}", character, describe_next()));
}

void JsonCursor::expect_comma(char closing) {
  if (take(',')) return;
  fail(fmt::format("expected ',' or '{}', found {}", closing, describe_next()));
}

}  // namespace penstock
