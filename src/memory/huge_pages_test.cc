#include "memory/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/tuning.h"
#include "memory/arena.h"

namespace penstock {
namespace {

// Pages that are left alone before the next is asked for.
unsigned left_alone(HugePageBudget& budget) {
  unsigned count = 0;
  while (!budget.allows()) ++count;
  return count;
}

TEST(HugePageBudgetTest, while_they_are_quick_all_are_asked_for) {
  HugePageBudget budget;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(budget.allows());
    budget.count(/*slow=*/false);
  }
}

TEST(HugePageBudgetTest, where_all_are_slow_few_are_asked_for) {
  HugePageBudget budget;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(budget.allows());
    budget.count(/*slow=*/true);
    EXPECT_EQ(left_alone(budget), tuning::kPagesPerSlowPage);
  }
}

TEST(HugePageBudgetTest, a_slow_one_among_quick_ones_costs_nothing) {
  HugePageBudget budget;
  for (unsigned i = 0; i < tuning::kQuickPagesPerSlowPage; ++i) budget.count(/*slow=*/false);
  budget.count(/*slow=*/true);
  EXPECT_TRUE(budget.allows());
  budget.count(/*slow=*/true);
  EXPECT_EQ(left_alone(budget), tuning::kPagesPerSlowPage);
}

TEST(HugePageBudgetTest, threads_that_meet_one_shortage_pay_for_each) {
  HugePageBudget budget;
  for (int i = 0; i < 4; ++i) budget.count(/*slow=*/true);
  EXPECT_EQ(left_alone(budget), 4 * tuning::kPagesPerSlowPage);
}

class HugePagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (huge_pages_setting() == "never") GTEST_SKIP() << "this process has no transparent huge pages";
    ::madvise(memory_.data(), memory_.size(), MADV_NOHUGEPAGE);
  }

  std::byte* page(std::size_t number) const { return memory_.data() + number * kHugePage; }

  const Mapping memory_ = Mapping::anonymous(8 * kHugePage, kHugePage);
  HugePageBudget budget_;
  HugePages pages_{memory_.data(), memory_.size(), /*insist=*/false};
};

TEST_F(HugePagesTest, what_is_asked_for_is_had_and_writable) {
  if (!pages_.have(page(0), kHugePage, budget_)) GTEST_SKIP() << "the kernel has no huge page to give";
  std::memset(page(0), 7, kHugePage);
  EXPECT_TRUE(pages_.have(page(0), kHugePage, budget_));
  EXPECT_EQ(page(0)[kHugePage / 2], std::byte{7});
}

TEST_F(HugePagesTest, parts_of_a_page_are_none) {
  EXPECT_FALSE(pages_.have(page(0), kHugePage / 2, budget_));
  EXPECT_FALSE(pages_.have(page(0), 3 * kHugePage / 2, budget_));
}

TEST_F(HugePagesTest, memory_that_has_small_pages_already_has_no_huge_ones) {
  std::memset(page(2), 7, kHugePage);
  EXPECT_FALSE(pages_.have(page(2), kHugePage, budget_));
  EXPECT_FALSE(pages_.have(page(1), 2 * kHugePage, budget_));  // all of it or nothing
}

TEST_F(HugePagesTest, once_the_memory_was_used_only_known_pages_count) {
  const bool had = pages_.have(page(0), kHugePage, budget_);
  *page(1) = std::byte{7};  // one end of a page that nobody asked about
  pages_.settle();
  EXPECT_FALSE(pages_.have(page(1), kHugePage, budget_));
  EXPECT_EQ(*page(1), std::byte{7});
  EXPECT_EQ(pages_.have(page(0), kHugePage, budget_), had);
}

TEST_F(HugePagesTest, pages_that_the_kernel_took_are_asked_for_anew) {
  if (!pages_.have(page(0), kHugePage, budget_)) GTEST_SKIP() << "the kernel has no huge page to give";
  ::madvise(page(0), kHugePage, MADV_DONTNEED);
  ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  EXPECT_FALSE(pages_.have(page(0), kHugePage, budget_));
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
