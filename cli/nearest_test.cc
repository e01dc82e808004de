#include "nearest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::cli {
namespace {

using ::testing::ElementsAre;

TEST(Nearest, distances_count_changes_and_swaps) {
  EXPECT_EQ(edit_distance("ls", "ls"), 0u);
  EXPECT_EQ(edit_distance("lss", "ls"), 1u);
  EXPECT_EQ(edit_distance("covnert", "convert"), 1u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
}

TEST(Nearest, wildcards_of_a_glob_cost_nothing) {
  EXPECT_EQ(edit_distance("*.bias", "layers.0.bias", true), 0u);
  EXPECT_EQ(edit_distance("layer.?.*", "layers.0.bias", true), 1u);
  EXPECT_EQ(edit_distance("*", "anything", true), 0u);
}

TEST(Nearest, only_what_is_near_was_meant) {
  const std::vector<std::string> names = {"ls", "convert", "--summary"};
  EXPECT_EQ(did_you_mean("lss", names), "; did you mean 'ls'?");
  EXPECT_EQ(did_you_mean("--sum", names), "; did you mean '--summary'?");
  EXPECT_EQ(did_you_mean("-x", names), "");
  EXPECT_EQ(did_you_mean("entirely", names), "");
}

TEST(Nearest, names_come_nearest_first_and_else_in_their_order) {
  EXPECT_THAT(nearest_names("layer.*", {"x", "layers.1", "layers.0"}, 2), ElementsAre("layers.1", "layers.0"));
  EXPECT_THAT(nearest_names("a", {}, 3), ElementsAre());
}

TEST(Nearest, a_name_of_any_length_is_judged_by_its_beginning) {
  EXPECT_EQ(edit_distance("", std::string(10'000'000, 'x')), 200u);
}

}  // namespace
}  // namespace penstock::cli
