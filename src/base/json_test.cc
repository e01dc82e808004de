#include "base/json.h"

#include <gtest/gtest.h>

#include <limits>

namespace penstock {
namespace {

std::string as_json(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

TEST(InvalidUtf8, every_code_point_is_valid) {
  EXPECT_FALSE(find_invalid_utf8(""));
  EXPECT_FALSE(find_invalid_utf8("ascii"));
  EXPECT_FALSE(find_invalid_utf8("\u00e9 \u20ac \U0001d11e"));
  EXPECT_FALSE(find_invalid_utf8("\xED\x9F\xBF\xEE\x80\x80"));  // the neighbours of the surrogates
  EXPECT_FALSE(find_invalid_utf8("\xF4\x8F\xBF\xBF"));          // the last one
}

TEST(InvalidUtf8, the_first_bad_byte_is_named) {
  EXPECT_EQ(find_invalid_utf8("ab\xFF"), 2U);
  EXPECT_EQ(find_invalid_utf8("\x80"), 0U);
  EXPECT_EQ(find_invalid_utf8("a\xC3"), 1U);  // cut short
  EXPECT_EQ(find_invalid_utf8("a\xE2\x82"), 1U);
  EXPECT_EQ(find_invalid_utf8("\xC0\xAF"), 0U);  // overlong
  EXPECT_EQ(find_invalid_utf8("\xE0\x80\xAF"), 0U);
  EXPECT_EQ(find_invalid_utf8("\xF0\x80\x80\xAF"), 0U);
  EXPECT_EQ(find_invalid_utf8("\xED\xA0\x80"), 0U);      // a surrogate
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0U);  // beyond the last one
}

TEST(InvalidUtf8, a_bad_byte_far_in_is_found) {
  std::string text(1000, 'x');
  text[777] = '\xC3';
  EXPECT_EQ(find_invalid_utf8(text), 777U);
}

TEST(JsonString, plain_text_is_only_quoted) {
  EXPECT_EQ(as_json("model.layers.0/\u00e9\x7f"), "\"model.layers.0/\u00e9\x7f\"");
}

TEST(JsonString, what_json_demands_is_escaped) {
  EXPECT_EQ(as_json("a\"b\\c"), R"("a\"b\\c")");
  EXPECT_EQ(as_json("\b\f\n\r\t"), R"("\b\f\n\r\t")");
  EXPECT_EQ(as_json(std::string_view("\0\x01\x1f", 3)), R"("\u0000\u0001\u001f")");
}

TEST(JsonNumber, limits_are_written_in_full) {
  std::string out = "x";
  append_json_number(out, 0);
  out += ' ';
  append_json_number(out, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(out, "x0 18446744073709551615");
}

}  // namespace
}  // namespace penstock
