#include "memory/huge_pages.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <ctime>
#include <fstream>

#include "base/tuning.h"
#include "memory/populate.h"

namespace penstock {
namespace {

double seconds_of(clockid_t clock) noexcept {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

long thread_faults() noexcept {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

struct Touched {
  long faults;  // a huge page takes one, or none if it is there; small ones take one each
  bool slow;
};

// Writes to the first and to the last byte. The sanitizers' own memory would take faults of its own.
__attribute__((no_sanitize("address", "thread"))) Touched touch(std::byte* page) noexcept {
  const double began = seconds_of(CLOCK_THREAD_CPUTIME_ID);
  const double waited = seconds_of(CLOCK_MONOTONIC);
  thread_faults();  // the first call on a thread may take a fault of its own
  const long before = thread_faults();
  *static_cast<volatile std::byte*>(page) = std::byte{0};
  *static_cast<volatile std::byte*>(page + kHugePage - 1) = std::byte{0};
  const bool slow = seconds_of(CLOCK_THREAD_CPUTIME_ID) - began >= tuning::kSlowHugePageSeconds ||
                    seconds_of(CLOCK_MONOTONIC) - waited >= tuning::kSlowHugePageWait;
  return {thread_faults() - before, slow};
}

bool is_resident(std::byte* page) noexcept {
  unsigned char flag = 0;
  return ::mincore(page, 1, &flag) == 0 && (flag & 1) != 0;
}

}  // namespace

std::string huge_pages_setting() {
  if (::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1) return "never";
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  // The word in brackets of "always [madvise] never".
  for (std::string word; file >> word;) {
    if (word.front() == '[') return word.substr(1, word.size() - 2);
  }
  return {};
}

bool HugePageBudget::allows() noexcept {
  constexpr unsigned kWorthOfQuick = tuning::kPagesPerSlowPage / tuning::kQuickPagesPerSlowPage;
  const unsigned spent = slow_.load(std::memory_order_relaxed) * tuning::kPagesPerSlowPage;
  if (spent <= left_alone_.load(std::memory_order_relaxed) + kWorthOfQuick * quick_.load(std::memory_order_relaxed)) {
    return true;
  }
  left_alone_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

HugePages::HugePages(std::byte* data, std::size_t nbytes, bool insist)
    : data_(data), insist_(insist), pages_(nbytes / kHugePage, Page::kUntouched) {}

bool HugePages::have(std::byte* data, std::uint64_t nbytes, HugePageBudget& budget) noexcept {
  const auto first = static_cast<std::size_t>(data - data_) / kHugePage;
  const std::size_t count = nbytes / kHugePage;
  bool all = count * kHugePage == nbytes;
  for (std::size_t number = first; number < first + count; ++number) all = have_page(number, budget) && all;
  return all;
}

void HugePages::settle() noexcept {
  if (!insist_) std::replace(pages_.begin(), pages_.end(), Page::kUntouched, Page::kSmall);
}

bool HugePages::have_page(std::size_t number, HugePageBudget& budget) noexcept {
  Page& page = pages_[number];
  std::byte* const data = data_ + number * kHugePage;
  if (page == Page::kUntouched) {
    // What was used without asking stays as it is. Not left to the faults: another one that comes between, as the
    // sanitizers' own may, would make a small page that is there look like a huge one that was fetched.
    page = !insist_ && is_resident(data) ? Page::kSmall : ask_for(data, budget);
  } else if (page == Page::kHuge) {
    page = ask_again(data, budget);
  }
  return page == Page::kHuge;
}

HugePages::Page HugePages::ask_for(std::byte* data, HugePageBudget& budget) noexcept {
  if (insist_) return touch(data).faults <= 1 ? Page::kHuge : Page::kSmall;
  if (!budget.allows()) return Page::kSmall;
  ::madvise(data, kHugePage, MADV_HUGEPAGE);
  const Touched touched = touch(data);
  const bool is_huge = touched.faults == 1;
  budget.count(/*slow=*/!is_huge || touched.slow);
  return is_huge ? Page::kHuge : Page::kSmall;
}

// It was huge when it was used last. It may have been offered to the kernel since (MADV_FREE), which may have taken it.
HugePages::Page HugePages::ask_again(std::byte* data, HugePageBudget& budget) noexcept {
  if (!is_resident(data)) {
    if (!insist_) ::madvise(data, kHugePage, MADV_NOHUGEPAGE);
    return ask_for(data, budget);
  }
  // Written to, it is ours again, all of it: before Linux 5.18 a direct read alone did not make it so.
  populate(data, kHugePage);
  return touch(data).faults <= 1 ? Page::kHuge : Page::kSmall;
}

}  // namespace penstock
