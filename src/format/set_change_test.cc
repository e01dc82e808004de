#include "format/set_change.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

SetChange example() {
  return {{"m.safetensors.index.json", 7, 1'700'000'000'123'456'789},
          {{"m-00001-of-00002.safetensors", 8, 1}, {"two words\nand lines", 18'446'744'073'709'551'615u, -5}},
          {{"m.safetensors", 9, 0}}};
}

TEST(SetChange, is_parsed_back) {
  EXPECT_EQ(parse_change(encode_change(example())), example());
  const SetChange only_index{{"i", 1, 2}, {}, {}};
  EXPECT_EQ(parse_change(encode_change(only_index)), only_index);
}

TEST(SetChange, is_text_with_a_line_for_each_file) {
  const SetChange change{{"i", 1, 2}, {{"a", 3, 4}}, {{"b", 5, 6}}};
  EXPECT_EQ(encode_change(change), "penstock set 1\nindex 1 2 1 i\nappear 3 4 1 a\nvanish 5 6 1 b\nend\n");
}

TEST(SetChange, wherever_the_text_is_cut_off_nothing_is_taken_from_it) {
  const std::string text = encode_change(example());
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_EQ(parse_change(std::string_view(text).substr(0, length)), SetChange{}) << length;
  }
}

TEST(SetChange, what_is_no_such_text_gives_nothing) {
  const std::string text = encode_change(example());
  EXPECT_EQ(parse_change(text + "more"), SetChange{});
  for (const char* bad : {
           "penstock set 2\nindex 1 2 1 i\nend\n",
           "penstock set 1\nend\n",
           "penstock set 1\nindex 1 2 9 i\nend\n",
           "penstock set 1\nindex 1 2 99999999999999999999 i\nend\n",
           "penstock set 1\nindex 99999999999999999999 2 1 i\nend\n",
           "penstock set 1\nindex  2 1 i\nend\n",
           "penstock set 1\nindex 1 2 0 \nend\n",
           "penstock set 1\nindex 1 2 1 i\nappear -1 2 1 a\nend\n",
           "penstock set 1\nindex 1 2 1 i\nother 1 2 1 a\nend\n",
       }) {
    EXPECT_EQ(parse_change(bad), SetChange{}) << bad;
  }
}

TEST(SetChange, a_name_in_another_directory_is_refused) {
  EXPECT_EQ(parse_change(encode_change({{"i", 1, 2}, {}, {{"../secret", 3, 4}}})), SetChange{});
  const std::string hidden("secret\0.safetensors", 19);  // the system reads "secret"
  EXPECT_EQ(parse_change(encode_change({{"i", 1, 2}, {}, {{hidden, 3, 4}}})), SetChange{});
}

TEST(SetChange, a_journal_is_hidden_and_called_after_the_set) {
  EXPECT_EQ(journal_file_name("model.safetensors"), ".model.safetensors.saving");
  EXPECT_TRUE(is_journal_name(".model.safetensors.saving"));
  EXPECT_FALSE(is_journal_name("model.safetensors.saving"));
  EXPECT_FALSE(is_journal_name(".saving"));
}

}  // namespace
}  // namespace penstock
