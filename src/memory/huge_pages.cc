#include "memory/huge_pages.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <ctime>
#include <fstream>

namespace penstock {
namespace {

// Measured: 0.2 ms where the memory is at hand, 4 to 8 where a hypervisor has to find it; 512 small pages take 0.6 to
// 0.9, and the copy that they need 0.15.
constexpr double kDearSeconds = 1e-3;

constexpr int kFirstLeave = 32;
constexpr int kLeastLeave = 8;
constexpr int kMostLeave = 1 << 20;
constexpr int kGoodRun = 8;  // as many cheap ones pay for a dear one

// Of this thread alone, so that who shares the core with it does not count.
double thread_seconds() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

long thread_faults() noexcept {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

// Writes to the first and to the last byte: a huge page takes one fault for both. True if it was one.
bool touch(std::byte* page) noexcept {
  const long before = thread_faults();
  *static_cast<volatile std::byte*>(page) = std::byte{0};
  *static_cast<volatile std::byte*>(page + kHugePage - 1) = std::byte{0};
  return thread_faults() - before == 1;
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

bool HugePageLuck::worth_asking() noexcept {
  return to_leave_.load(std::memory_order_relaxed) <= 0 || to_leave_.fetch_sub(1, std::memory_order_relaxed) <= 0;
}

void HugePageLuck::was_cheap() noexcept {
  cheap_.fetch_add(1, std::memory_order_relaxed);
}

void HugePageLuck::was_dear() noexcept {
  const bool good_run = cheap_.exchange(0, std::memory_order_relaxed) >= kGoodRun;
  const int last = leave_next_.load(std::memory_order_relaxed);
  const int leave = good_run ? kLeastLeave : last == 0 ? kFirstLeave : std::min(2 * last, kMostLeave);
  leave_next_.store(leave, std::memory_order_relaxed);
  to_leave_.store(leave, std::memory_order_relaxed);
}

HugePages::HugePages(std::byte* data, std::size_t nbytes, bool insist)
    : data_(data), insist_(insist), pages_(nbytes / kHugePage, Page::kUntouched) {}

bool HugePages::have(std::byte* data, std::uint64_t nbytes) noexcept {
  const auto first = static_cast<std::size_t>(data - data_) / kHugePage;
  const std::size_t count = nbytes / kHugePage;
  bool all = count * kHugePage == nbytes;
  for (std::size_t number = first; number < first + count; ++number) all = have_page(number) && all;
  return all;
}

bool HugePages::have_page(std::size_t number) noexcept {
  Page& page = pages_[number];
  if (page == Page::kUntouched) {
    page = Page::kSmall;
    if (!insist_ && !luck_.worth_asking()) return false;
    std::byte* const data = data_ + number * kHugePage;
    const double before = thread_seconds();
    ::madvise(data, kHugePage, MADV_HUGEPAGE);
    const bool is_huge = touch(data);
    const bool was_cheap = is_huge && thread_seconds() - before < kDearSeconds;
    was_cheap ? luck_.was_cheap() : luck_.was_dear();
    if (is_huge) page = Page::kHuge;
  } else if (page == Page::kHuge) {
    // Memory that was kept may have been offered to the kernel (MADV_FREE). Written to, it is ours again; before Linux
    // 5.18 a direct read alone did not make it so.
    touch(data_ + number * kHugePage);
  }
  return page == Page::kHuge;
}

}  // namespace penstock
