#include "memory/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "memory/arena.h"

namespace penstock {
namespace {

// How many are left small before the next is asked for.
int left_after_dear(HugePageLuck& luck) {
  luck.was_dear(luck.worth_asking().value());
  int left = 0;
  while (!luck.worth_asking()) ++left;
  return left;
}

void are_cheap(HugePageLuck& luck, int count) {
  for (int i = 0; i < count; ++i) luck.was_cheap(luck.worth_asking().value());
}

TEST(HugePageLuckTest, while_they_are_cheap_all_are_asked_for) {
  HugePageLuck luck;
  are_cheap(luck, 1000);
  EXPECT_TRUE(luck.worth_asking());
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
  are_cheap(luck, 1);
  EXPECT_EQ(left_after_dear(luck), 4 * first);  // one is no run
  are_cheap(luck, 8);
  EXPECT_LT(left_after_dear(luck), first);
}

TEST(HugePageLuckTest, threads_that_wait_for_the_same_shortage_count_once) {
  HugePageLuck one;
  HugePageLuck eight;
  std::vector<HugePageLuck::Question> questions;
  for (int i = 0; i < 8; ++i) questions.push_back(eight.worth_asking().value());
  for (const auto question : questions) eight.was_dear(question);
  int left = 0;
  while (!eight.worth_asking()) ++left;
  EXPECT_EQ(left, left_after_dear(one));
}

class HugePagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (huge_pages_setting() == "never") GTEST_SKIP() << "this process has no transparent huge pages";
    ::madvise(memory_.data(), memory_.size(), MADV_NOHUGEPAGE);
  }

  std::byte* page(std::size_t number) const { return memory_.data() + number * kHugePage; }

  const Mapping memory_ = Mapping::anonymous(8 * kHugePage, kHugePage);
  HugePageLuck luck_;
  HugePages pages_{memory_.data(), memory_.size(), /*insist=*/false};
};

TEST_F(HugePagesTest, what_is_asked_for_is_had_and_writable) {
  if (!pages_.have(page(0), kHugePage, luck_)) GTEST_SKIP() << "the kernel has no huge page to give";
  std::memset(page(0), 7, kHugePage);
  EXPECT_TRUE(pages_.have(page(0), kHugePage, luck_));
  EXPECT_EQ(page(0)[kHugePage / 2], std::byte{7});
}

TEST_F(HugePagesTest, parts_of_a_page_are_none) {
  EXPECT_FALSE(pages_.have(page(0), kHugePage / 2, luck_));
  EXPECT_FALSE(pages_.have(page(0), 3 * kHugePage / 2, luck_));
}

TEST_F(HugePagesTest, memory_that_has_small_pages_already_has_no_huge_ones) {
  std::memset(page(2), 7, kHugePage);
  EXPECT_FALSE(pages_.have(page(2), kHugePage, luck_));
  EXPECT_FALSE(pages_.have(page(1), 2 * kHugePage, luck_));  // all of it or nothing
}

TEST_F(HugePagesTest, once_the_memory_was_used_only_known_pages_count) {
  const bool had = pages_.have(page(0), kHugePage, luck_);
  *page(1) = std::byte{7};  // one end of a page that nobody asked about
  pages_.settle();
  EXPECT_FALSE(pages_.have(page(1), kHugePage, luck_));
  EXPECT_EQ(*page(1), std::byte{7});
  EXPECT_EQ(pages_.have(page(0), kHugePage, luck_), had);
}

TEST_F(HugePagesTest, pages_that_the_kernel_took_are_asked_for_anew) {
  if (!pages_.have(page(0), kHugePage, luck_)) GTEST_SKIP() << "the kernel has no huge page to give";
  ::madvise(page(0), kHugePage, MADV_DONTNEED);
  ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  EXPECT_FALSE(pages_.have(page(0), kHugePage, luck_));
  ::prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
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
