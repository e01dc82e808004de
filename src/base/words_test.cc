#include "penstock/words.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

template <typename Choice>
class Words : public testing::Test {};

using Choices = testing::Types<Backend, CachePolicy, Landing, WriteMethod, SharedTensors, Verify>;
TYPED_TEST_SUITE(Words, Choices);

// Enumerators count from 0: one that was passed over leaves a gap.
TYPED_TEST(Words, every_choice_has_one) {
  const auto count = static_cast<int>(kWords<TypeParam>.size());
  for (int i = 0; i < count; ++i) {
    const auto choice = static_cast<TypeParam>(i);
    EXPECT_NE(to_word(choice), "") << i;
    EXPECT_EQ(from_word<TypeParam>(to_word(choice)), choice) << i;
  }
}

TYPED_TEST(Words, what_is_none_is_refused) {
  EXPECT_EQ(from_word<TypeParam>("sideways"), std::nullopt);
  EXPECT_EQ(from_word<TypeParam>(""), std::nullopt);
  EXPECT_EQ(from_word<TypeParam>("AUTO"), std::nullopt);
}

TEST(ListWords, in_quotes_for_a_message) {
  EXPECT_EQ(list_words<Landing>(), R"("auto", "in_place", "staged")");
}

}  // namespace
}  // namespace penstock
