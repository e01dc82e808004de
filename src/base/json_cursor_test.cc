#include "base/json_cursor.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/json.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// `text` is followed by a NUL: it comes from a literal or a std::string.
JsonCursor cursor_over(std::string_view text) {
  return JsonCursor(text, 100, "file");
}

std::string read_string(const std::string& json) {
  std::string scratch;
  JsonCursor cursor = cursor_over(json);
  return std::string(cursor.string(scratch));
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFormat);
    return error.what();
  }
  return "no error";
}

std::string string_error(const std::string& json) {
  return error_of([&] { read_string(json); });
}

std::string integer_error(const std::string& json) {
  return error_of([&] { cursor_over(json).integer(); });
}

TEST(JsonCursor, white_space_is_passed_over) {
  const std::string text = " \t\r\n{ \n} ";
  JsonCursor cursor = cursor_over(text);
  EXPECT_TRUE(cursor.take('{'));
  EXPECT_FALSE(cursor.take('{'));
  EXPECT_FALSE(cursor.at_end());
  EXPECT_TRUE(cursor.take('}'));
  EXPECT_TRUE(cursor.at_end());
}

TEST(JsonCursor, a_nul_in_the_text_is_not_its_end) {
  const std::string text("\0", 1);
  EXPECT_FALSE(cursor_over(text).at_end());
  EXPECT_EQ(cursor_over(text).describe_next(), "\"\\x00\"");
}

TEST(JsonCursor, a_plain_string_is_a_view_of_the_text) {
  const std::string text = R"("name")";
  std::string scratch;
  JsonCursor cursor = cursor_over(text);
  const std::string_view name = cursor.string(scratch);
  EXPECT_EQ(name, "name");
  EXPECT_EQ(name.data(), text.data() + 1);
}

TEST(JsonCursor, escapes_are_undone) {
  EXPECT_EQ(read_string(R"("a\"\\\/\b\f\n\r\tz")"), "a\"\\/\b\f\n\r\tz");
  EXPECT_EQ(read_string(R"("\u0041\u00e9\u20AC")"), "A\u00e9\u20ac");
  EXPECT_EQ(read_string(R"("\ud834\udd1e")"), "\U0001d11e");
  EXPECT_EQ(read_string(R"("x\u0000y")"), std::string("x\0y", 3));
}

TEST(JsonCursor, what_append_json_string_writes_is_read_back) {
  std::string all;
  for (char character = 1; character < 127; ++character) all += character;
  all += "\u00e9\u20ac\U0001d11e";
  std::string json;
  append_json_string(json, all);
  EXPECT_EQ(read_string(json), all);
}

TEST(JsonCursor, bad_strings_are_refused_with_their_place) {
  EXPECT_EQ(string_error("x"), "file: byte 100: expected '\"', found \"x\"");
  EXPECT_EQ(string_error("\"ab"), "file: byte 103: the text ends inside a string");
  EXPECT_EQ(string_error("\"ab\\"), "file: byte 104: a backslash is not followed by a known escape");
  EXPECT_EQ(string_error("\"\\x\""), "file: byte 102: a backslash is not followed by a known escape");
  EXPECT_EQ(string_error("\"\n\""), "file: byte 101: a string holds the control character 0x0a, which must be escaped");
  EXPECT_EQ(string_error("\"\\u12g4\""), "file: byte 105: \\u is not followed by four hexadecimal digits");
}

TEST(JsonCursor, lone_surrogates_are_refused) {
  EXPECT_EQ(string_error(R"("\ud834")"), "file: byte 107: an escaped high surrogate without a low one after it");
  EXPECT_EQ(string_error(R"("\ud834\u0041")"), "file: byte 113: an escaped high surrogate without a low one after it");
  EXPECT_EQ(string_error(R"("\udd1e")"), "file: byte 107: an escaped low surrogate without a high one before it");
}

TEST(JsonCursor, integers_up_to_the_limit_are_read) {
  EXPECT_EQ(cursor_over("0").integer(), 0U);
  EXPECT_EQ(cursor_over(" 42,").integer(), 42U);
  EXPECT_EQ(cursor_over("18446744073709551615]").integer(), 18446744073709551615U);
}

TEST(JsonCursor, what_is_not_such_an_integer_is_refused) {
  const std::string expected = "file: byte 100: expected an integer from 0 to 2^64 - 1, found ";
  EXPECT_EQ(integer_error("-1"), expected + "-1");
  EXPECT_EQ(integer_error("-0"), expected + "-0");
  EXPECT_EQ(integer_error("1.0"), expected + "1.0");
  EXPECT_EQ(integer_error("1e3"), expected + "1e3");
  EXPECT_EQ(integer_error("01"), expected + "01");
  EXPECT_EQ(integer_error("18446744073709551616"), expected + "18446744073709551616");
  EXPECT_EQ(integer_error("99999999999999999999999"), expected + "99999999999999999999999");
  EXPECT_EQ(integer_error("\"1\""), expected + "a string");
  EXPECT_EQ(integer_error("[1]"), expected + "an array");
  EXPECT_EQ(integer_error("null"), expected + "null");
  EXPECT_EQ(integer_error(""), expected + "the end of the text");
}

TEST(JsonCursor, a_list_is_walked_element_by_element) {
  JsonCursor cursor = cursor_over("[1, 2 ,3]");
  cursor.expect('[');
  std::uint64_t sum = 0;
  for (bool first = true; cursor.more(']', first);) sum = sum * 10 + cursor.integer();
  EXPECT_EQ(sum, 123U);
  EXPECT_TRUE(cursor.at_end());
}

TEST(JsonCursor, missing_and_spare_commas_are_refused) {
  const auto walk = [](const std::string& text) {
    return error_of([&] {
      JsonCursor cursor = cursor_over(text);
      cursor.expect('[');
      for (bool first = true; cursor.more(']', first);) cursor.integer();
    });
  };
  EXPECT_EQ(walk("[1 2]"), "file: byte 103: expected ',' or ']', found 2");
  EXPECT_EQ(walk("[1,]"), "file: byte 103: expected an integer from 0 to 2^64 - 1, found \"]\"");
  EXPECT_EQ(walk("[,1]"), "file: byte 101: expected an integer from 0 to 2^64 - 1, found \",\"");
  EXPECT_EQ(walk("[1"), "file: byte 102: expected ',' or ']', found the end of the text");
}

}  // namespace
}  // namespace penstock
