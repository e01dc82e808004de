#include "transfer/interleave.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Numbers = std::vector<int>;

TEST(InterleaveTest, lists_of_the_same_length_alternate) {
  EXPECT_THAT(interleave(Numbers{1, 2, 3}, Numbers{7, 8, 9}), ElementsAre(1, 7, 2, 8, 3, 9));
}

TEST(InterleaveTest, a_longer_list_is_spread_evenly) {
  EXPECT_THAT(interleave(Numbers{1, 2}, Numbers{5, 6, 7, 8, 9}), ElementsAre(1, 5, 6, 2, 7, 8, 9));
  EXPECT_THAT(interleave(Numbers{1, 2, 3, 4, 5}, Numbers{8, 9}), ElementsAre(1, 2, 3, 8, 4, 5, 9));
}

TEST(InterleaveTest, an_empty_list_leaves_the_other) {
  EXPECT_THAT(interleave(Numbers{1, 2}, Numbers{}), ElementsAre(1, 2));
  EXPECT_THAT(interleave(Numbers{}, Numbers{1, 2}), ElementsAre(1, 2));
  EXPECT_THAT(interleave(Numbers{}, Numbers{}), IsEmpty());
}

}  // namespace
}  // namespace penstock
