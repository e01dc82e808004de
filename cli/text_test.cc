#include "text.h"

#include <gtest/gtest.h>

namespace penstock::cli {
namespace {

TEST(Text, wide_characters_take_two_columns_and_marks_none) {
  EXPECT_EQ(display_width("layer.0"), 7);
  EXPECT_EQ(display_width("schön"), 5);
  EXPECT_EQ(display_width("重み"), 4);
  EXPECT_EQ(display_width("e\xCC\x81"), 1);  // e and a combining accent
  EXPECT_EQ(display_width("🚀"), 2);
}

TEST(Text, broken_utf8_takes_a_column_per_byte) {
  EXPECT_EQ(display_width("\xFF\xFE"), 2);
  EXPECT_EQ(display_width("\xE2\x82"), 2);  // cut short
}

TEST(Text, control_characters_cannot_steer_the_terminal) {
  EXPECT_EQ(printable("a\x1b[31mb"), "a\\x1b[31mb");
  EXPECT_EQ(printable("two\nlines\tand\r"), "two\\nlines\\tand\\r");
  EXPECT_EQ(printable("c1\xC2\x9B"), "c1\\x9b");
  EXPECT_EQ(printable("\xE2\x80\xAE"), "\\u202e");  // right to left override
}

TEST(Text, ordinary_characters_of_any_script_stay) {
  EXPECT_EQ(printable("schön 重み 🚀"), "schön 重み 🚀");
}

TEST(Text, bytes_that_are_not_utf8_are_escaped) {
  EXPECT_EQ(printable("\xFFok"), "\\xffok");
  EXPECT_EQ(printable("\xC0\xAF"), "\\xc0\\xaf");           // overlong
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xed\\xa0\\x80");  // a surrogate
}

}  // namespace
}  // namespace penstock::cli
