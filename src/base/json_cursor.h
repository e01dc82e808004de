// JsonCursor: walks over JSON text of a known structure, in one pass and without an index of it.
//
// A header of 100,000 tensors is 10 MB of nothing but small records; a cursor over it touches no memory beyond the
// text, stops at the first byte that is wrong, and can say which one it is. It is strict: no comments, no trailing
// commas, no leading zeros. What a grammar leaves open (an object of any structure) is for simdjson, not for this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock {

class JsonCursor {
 public:
  // `text` is valid UTF-8, is followed by a NUL byte, and starts at byte `offset` of the file `path`, which messages
  // name.
  JsonCursor(std::string_view text, std::uint64_t offset, std::string_view path) noexcept
      : begin_(text.data()), end_(text.data() + text.size()), next_(begin_), offset_(offset), path_(path) {}

  // The next character that is not white space; NUL at the end.
  char peek() noexcept {
    while (*next_ == ' ' || *next_ == '\n' || *next_ == '\t' || *next_ == '\r') ++next_;
    return *next_;
  }

  bool at_end() noexcept { return peek() == '\0' && next_ == end_; }

  // Passes `character` if it is next.
  bool take(char character) noexcept {
    if (peek() != character) return false;
    ++next_;
    return true;
  }

  // Passes `null` if it is next.
  bool take_null() noexcept {
    constexpr std::string_view kNull = "null";
    peek();
    if (!std::string_view(next_, end_).starts_with(kNull)) return false;
    next_ += kNull.size();
    return true;
  }

  // Passes `character` or throws: "expected ':', found ...".
  void expect(char character) {
    if (!take(character)) fail_expected_character(character);
  }

  // Before each element of an object or array whose opening bracket was passed; false once `closing` was passed.
  //   for (bool first = true; cursor.more('}', first);) ...
  bool more(char closing, bool& first) {
    const bool was_first = first;
    first = false;
    if (take(closing)) return false;
    if (!was_first) expect_comma(closing);
    return true;
  }

  // Reads a string. The view is into the text, or into `scratch` when there were escapes in it.
  std::string_view string(std::string& scratch);

  // Reads a number that is an integer from 0 to 2^64 - 1, written as digits.
  std::uint64_t integer();

  // What comes next, for a message: "an array", "null", "-1".
  std::string describe_next();

  // Where the cursor is, in bytes of the file.
  std::uint64_t byte() const noexcept { return offset_ + static_cast<std::uint64_t>(next_ - begin_); }

  // Throws Error(kFormat): "PATH: byte 17: MESSAGE".
  [[noreturn]] void fail(std::string_view message) const;

 private:
  std::string_view string_with_escapes(const char* begin, std::string& scratch);
  void append_escape(std::string& scratch);
  std::uint32_t hex_digits();
  [[noreturn]] void fail_expected_character(char character);
  void expect_comma(char closing);

  const char* begin_;
  const char* end_;
  const char* next_;
  std::uint64_t offset_;
  std::string_view path_;
};

}  // namespace penstock
