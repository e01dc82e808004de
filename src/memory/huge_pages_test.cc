#include "memory/huge_pages.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/bytes.h"
#include "memory/arena.h"

namespace penstock {
namespace {

// How many are left small before the next is asked for.
int left_after_dear(HugePageLuck& luck) {
  luck.was_dear();
  int left = 0;
  while (!luck.worth_asking()) ++left;
  return left;
}

TEST(HugePageLuckTest, while_they_are_cheap_all_are_asked_for) {
  HugePageLuck luck;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(luck.worth_asking());
    luck.was_cheap();
  }
}

TEST(HugePageLuckTest, ever_more_stay_small_while_the_next_is_dear_too) {
  HugePageLuck luck;
  const int first = left_after_dear(luck);
  EXPECT_GT(first, 0);
  EXPECT_EQ(left_after_dear(luck), 2 * first);
  EXPECT_EQ(left_after_dear(luck), 4 * first);
}

TEST(HugePageLuckTest, a_good_run_is_worth_another_try_soon) {
  HugePageLuck luck;
  const int first = left_after_dear(luck);
  left_after_dear(luck);
  luck.was_cheap();
  EXPECT_EQ(left_after_dear(luck), 4 * first);  // one is no run
  for (int i = 0; i < 8; ++i) luck.was_cheap();
  EXPECT_LT(left_after_dear(luck), first);
}

class HugePagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (huge_pages_setting() == "never") GTEST_SKIP() << "this process has no transparent huge pages";
  }

  const Mapping memory_ = Mapping::anonymous(8 * kHugePage, kHugePage);
  HugePages pages_{memory_.data(), memory_.size(), /*insist=*/true};
};

TEST_F(HugePagesTest, what_is_asked_for_is_had_and_writable) {
  if (!pages_.have(memory_.data(), kHugePage)) GTEST_SKIP() << "the kernel has no huge page to give";
  std::memset(memory_.data(), 7, kHugePage);
  EXPECT_TRUE(pages_.have(memory_.data(), kHugePage));
}

TEST_F(HugePagesTest, parts_of_a_page_are_none) {
  EXPECT_FALSE(pages_.have(memory_.data(), kHugePage / 2));
  EXPECT_FALSE(pages_.have(memory_.data(), 3 * kHugePage / 2));
}

TEST_F(HugePagesTest, memory_that_has_small_pages_already_has_no_huge_ones) {
  if (huge_pages_setting() == "always") GTEST_SKIP() << "all memory has huge pages here";
  std::memset(memory_.data() + 2 * kHugePage, 7, kHugePage);
  EXPECT_FALSE(pages_.have(memory_.data() + 2 * kHugePage, kHugePage));
  EXPECT_FALSE(pages_.have(memory_.data() + kHugePage, 2 * kHugePage));  // all of it or nothing
}

TEST(HugePagesOfArenasTest, only_large_ones_have_room) {
  const auto pool = host_pool(MemoryPool::create());
  EXPECT_EQ(pool->allocate(4 * kMiB)->pages, nullptr);
  const auto large = pool->allocate(64 * kMiB);
  EXPECT_EQ(large->pages != nullptr, pool->may_be_huge(64 * kMiB));
  EXPECT_TRUE(large->pages == nullptr || is_aligned(reinterpret_cast<std::uintptr_t>(large->data()), kHugePage));
}

}  // namespace
}  // namespace penstock
