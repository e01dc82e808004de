#include "table.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

namespace penstock::cli {
namespace {

// What a table prints, through a pipe.
std::string printed(const Table& table, const Terminal& terminal = {}) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  Output out(ends[1]);
  table.print(out, terminal);
  out.flush();
  close(ends[1]);
  std::string text(4096, '\0');
  text.resize(static_cast<std::size_t>(read(ends[0], text.data(), text.size())));
  close(ends[0]);
  return text;
}

TEST(Table, columns_are_aligned_and_lines_have_no_trailing_spaces) {
  Table table({{"DTYPE"}, {"SIZE", Align::kRight}, {"NAME"}});
  table.add({"BF16", "16.0 KiB", "short"});
  table.add({"F8_E4M3", "2 B", "a much longer name"});
  table.add({"F32"});
  EXPECT_EQ(printed(table),
            "  DTYPE        SIZE  NAME\n"
            "  BF16     16.0 KiB  short\n"
            "  F8_E4M3       2 B  a much longer name\n"
            "  F32\n");
}

TEST(Table, wide_characters_keep_the_columns_aligned) {
  Table table({{""}, {""}});
  table.add({"重み", "x"});
  table.add({"abcde", "y"});
  EXPECT_EQ(printed(table), "  重み   x\n  abcde  y\n");
}

TEST(Table, colours_do_not_change_the_alignment) {
  Table table({{"", Align::kRight, Tone::kGood}, {""}});
  table.add({"1", "x"});
  table.add({"22", "y"});
  Terminal terminal;
  terminal.colors = true;
  EXPECT_EQ(printed(table, terminal), "   \x1b[32m1\x1b[0m  x\n  \x1b[32m22\x1b[0m  y\n");
}

TEST(Table, cells_are_wrapped_where_the_terminal_is_narrow_and_the_last_column_gives_way_first) {
  Table table({{"DTYPE"}, {"SHAPE"}, {"NAME"}});
  table.add({"F32", "[1, 2]", "model.layers.0.mlp.weight"});
  Terminal terminal;
  terminal.width = 33;
  EXPECT_EQ(printed(table, terminal),
            "  DTYPE  SHAPE   NAME\n"
            "  F32    [1, 2]  model.layers.0.\n"
            "                 mlp.weight\n");
  terminal.width = 0;
  EXPECT_EQ(printed(table, terminal), "  DTYPE  SHAPE   NAME\n  F32    [1, 2]  model.layers.0.mlp.weight\n");
}

TEST(Table, a_column_that_is_narrower_than_a_character_is_printed_all_the_same) {
  Table table({{""}, {"", Align::kRight}, {""}});
  table.add({"重み", "重", "x"});
  Terminal terminal;
  terminal.width = 1;
  EXPECT_EQ(printed(table, terminal), "  重  重  x\n  み\n");
}

TEST(Table, a_gap_is_an_empty_line) {
  Table table({{""}});
  table.add({"a"});
  table.add_gap();
  table.add({"b"});
  EXPECT_EQ(printed(table), "  a\n\n  b\n");
}

}  // namespace
}  // namespace penstock::cli
