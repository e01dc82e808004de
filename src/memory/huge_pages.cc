#include "memory/huge_pages.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <ctime>
#include <fstream>

#include "memory/populate.h"

namespace penstock {
namespace {

// Measured: 0.2 ms where the memory is at hand, 4 to 8 where a hypervisor has to find it; 512 small pages take 0.6 to
// 0.9, and the copy that they need 0.15.
constexpr double kDearSeconds = 1e-3;
// A kernel that puts memory together may sleep, which takes no processor time. Nor does waiting for a core.
constexpr double kDearWaitSeconds = 8e-3;

constexpr int kFirstLeave = 32;
constexpr int kLeastLeave = 8;
constexpr int kMostLeave = 1 << 20;
constexpr int kGoodRun = 8;  // as many cheap ones pay for a dear one

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
  bool cheap;
};

// Writes to the first and to the last byte. The sanitizers' own memory would take faults of its own.
__attribute__((no_sanitize("address", "thread"))) Touched touch(std::byte* page) noexcept {
  const double began = seconds_of(CLOCK_THREAD_CPUTIME_ID);
  const double waited = seconds_of(CLOCK_MONOTONIC);
  const long before = thread_faults();
  *static_cast<volatile std::byte*>(page) = std::byte{0};
  *static_cast<volatile std::byte*>(page + kHugePage - 1) = std::byte{0};
  return {thread_faults() - before, seconds_of(CLOCK_THREAD_CPUTIME_ID) - began < kDearSeconds &&
                                        seconds_of(CLOCK_MONOTONIC) - waited < kDearWaitSeconds};
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

std::optional<HugePageLuck::Question> HugePageLuck::worth_asking() {
  const std::lock_guard lock(mutex_);
  if (to_leave_ == 0) return current_;
  --to_leave_;
  return std::nullopt;
}

void HugePageLuck::was_cheap(Question question) {
  const std::lock_guard lock(mutex_);
  if (question == current_) ++cheap_;
}

void HugePageLuck::was_dear(Question question) {
  const std::lock_guard lock(mutex_);
  if (question != current_) return;
  ++current_;
  leave_last_ = cheap_ >= kGoodRun ? kLeastLeave
                : leave_last_ == 0 ? kFirstLeave
                                   : std::min(2 * leave_last_, kMostLeave);
  to_leave_ = leave_last_;
  cheap_ = 0;
}

HugePages::HugePages(std::byte* data, std::size_t nbytes, bool insist)
    : data_(data), insist_(insist), pages_(nbytes / kHugePage, Page::kUntouched) {}

bool HugePages::have(std::byte* data, std::uint64_t nbytes, HugePageLuck& luck) noexcept {
  const auto first = static_cast<std::size_t>(data - data_) / kHugePage;
  const std::size_t count = nbytes / kHugePage;
  bool all = count * kHugePage == nbytes;
  for (std::size_t number = first; number < first + count; ++number) all = have_page(number, luck) && all;
  return all;
}

void HugePages::settle() noexcept {
  if (!insist_) std::replace(pages_.begin(), pages_.end(), Page::kUntouched, Page::kSmall);
}

bool HugePages::have_page(std::size_t number, HugePageLuck& luck) noexcept {
  Page& page = pages_[number];
  std::byte* const data = data_ + number * kHugePage;
  if (page == Page::kUntouched) {
    page = ask_for(data, luck);
  } else if (page == Page::kHuge) {
    page = ask_again(data, luck);
  }
  return page == Page::kHuge;
}

HugePages::Page HugePages::ask_for(std::byte* data, HugePageLuck& luck) noexcept {
  if (insist_) return touch(data).faults <= 1 ? Page::kHuge : Page::kSmall;
  const auto question = luck.worth_asking();
  if (!question) return Page::kSmall;
  ::madvise(data, kHugePage, MADV_HUGEPAGE);
  const Touched touched = touch(data);
  const bool is_huge = touched.faults == 1;
  is_huge&& touched.cheap ? luck.was_cheap(*question) : luck.was_dear(*question);
  return is_huge ? Page::kHuge : Page::kSmall;
}

// It was huge when it was used last. It may have been offered to the kernel since (MADV_FREE), which may have taken it.
HugePages::Page HugePages::ask_again(std::byte* data, HugePageLuck& luck) noexcept {
  if (!is_resident(data)) {
    if (!insist_) ::madvise(data, kHugePage, MADV_NOHUGEPAGE);
    return ask_for(data, luck);
  }
  // Written to, it is ours again, all of it: before Linux 5.18 a direct read alone did not make it so.
  populate(data, kHugePage);
  return touch(data).faults <= 1 ? Page::kHuge : Page::kSmall;
}

}  // namespace penstock
