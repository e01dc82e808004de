#include "memory/budget.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "base/bytes.h"
#include "memory/arena.h"
#include "penstock/error.h"

namespace penstock {
namespace {

std::string refusal(const MemoryBudget& budget, std::uint64_t tensors, std::uint64_t blocks) {
  try {
    const MemoryClaim claim = budget.require("f", "a load", tensors, blocks, "take less");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMemory);
    return error.what();
  }
}

TEST(MemoryBudget, what_does_not_fit_is_refused_with_the_numbers) {
  const MemoryBudget budget = asked_budget(10 * kMiB, "memory_budget");
  EXPECT_EQ(refusal(budget, 8 * kMiB, 2 * kMiB), "");
  EXPECT_EQ(refusal(budget, 9 * kMiB, 2 * kMiB),
            "f: a load takes 9.0 MiB of memory and 2.0 MiB of blocks, and memory_budget allows 10.0 MiB: take less");
}

TEST(MemoryBudget, sums_do_not_overflow) {
  const MemoryBudget budget = asked_budget(10 * kMiB, "memory_budget");
  EXPECT_NE(refusal(budget, ~std::uint64_t{0}, 1), "");
  EXPECT_NE(refusal(budget, 1, ~std::uint64_t{0}), "");
  EXPECT_EQ(refusal(MemoryBudget(), ~std::uint64_t{0}, 0), "");
}

TEST(MemoryBudget, what_is_left_is_no_more_than_there_is) {
  const MemoryBudget budget = remaining_memory();
  EXPECT_FALSE(budget.asked);
  EXPECT_GT(budget.bytes, 16 * kMiB);
  EXPECT_NE(budget.source.find(" are left of the "), std::string::npos);
}

TEST(MemoryBudget, what_others_have_claimed_is_not_left) {
  const MemoryBudget budget = remaining_memory();
  const std::uint64_t most = budget.bytes / 4 * 3;
  auto claim = budget.claim(most);
  ASSERT_TRUE(claim);
  EXPECT_FALSE(budget.claim(most));
  EXPECT_LT(remaining_memory().bytes, most);
  // A child has none of what other threads had claimed.
  const pid_t child = ::fork();
  if (child == 0) ::_exit(remaining_memory().claim(most) ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  claim.reset();
  EXPECT_TRUE(remaining_memory().claim(most));
}

}  // namespace
}  // namespace penstock
