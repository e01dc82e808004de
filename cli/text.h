// Text on its way to a terminal: how wide it is, and how to keep untrusted names from steering the terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

// Columns that UTF-8 text takes: wide characters (CJK, emoji) count two, combining marks none, broken bytes one each.
std::size_t display_width(std::string_view text);

// `text` on one line and without power over a terminal: control characters and bytes that are not UTF-8 become escapes
// such as \n and \x1b; everything else stays.
std::string printable(std::string_view text);

// Lines of at most `width` columns, broken at spaces; a word that is longer is broken too, after punctuation if it has
// some. There is always one line.
std::vector<std::string> wrap(std::string_view text, std::size_t width);

// `text` in at most `width` columns: what is too long loses its middle to `dots`.
std::string shorten_middle(std::string_view text, std::size_t width, std::string_view dots);

// Decodes the character at text[position], moves `position` past it, and sets `valid` to whether it was proper UTF-8.
// What is not is taken byte by byte.
char32_t next_character(std::string_view text, std::size_t& position, bool& valid);

}  // namespace penstock::cli
