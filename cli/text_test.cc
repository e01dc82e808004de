#include "text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::cli {
namespace {

using ::testing::ElementsAre;

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

TEST(Text, lines_are_broken_at_spaces_and_long_words_after_punctuation) {
  EXPECT_THAT(wrap("one two three", 7), ElementsAre("one two", "three"));
  EXPECT_THAT(wrap("see model/layers/0.weight", 10), ElementsAre("see", "model/", "layers/0.", "weight"));
  EXPECT_THAT(wrap("abcdefgh", 3), ElementsAre("abc", "def", "gh"));
  EXPECT_THAT(wrap("重重重", 4), ElementsAre("重重", "重"));
  EXPECT_THAT(wrap("", 10), ElementsAre(""));
}

TEST(Text, a_word_of_any_length_is_broken_in_one_go) {
  EXPECT_EQ(wrap(std::string(4'000'000, 'x'), 80).size(), 50'000u);
}

TEST(Text, what_is_too_long_loses_its_middle) {
  EXPECT_EQ(shorten_middle("/data/models/model.safetensors", 24, "..."), "/data/m...el.safetensors");
  EXPECT_EQ(shorten_middle("short", 24, "..."), "short");
  EXPECT_EQ(display_width(shorten_middle(std::string(100, 'x'), 30, "...")), 30u);
}

}  // namespace
}  // namespace penstock::cli
