// HugePages: which pages of an arena are huge ones, and for which the kernel is asked.
//
// A page of 2 MiB takes one fault in place of 512, and is one segment of a request in place of hundreds: direct reads
// land there in place, at the speed of the drive. But where a hypervisor has taken free memory back, or memory is in
// pieces, a huge page takes milliseconds, while small ones are there at once. Nobody tells beforehand. So they are
// asked for one by one, and timed, within a budget of slow ones.
//
// Safe from several threads, as long as no two ask about the same page at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/page.h"

namespace penstock {

// Transparent ones for this process: "always", "madvise" or "never"; empty where the kernel does not say.
std::string huge_pages_setting();

// How many slow huge pages a load can still afford. Quick ones pay for a slow one, and so does leaving pages alone: a
// load whose pages are all slow tries few of them, and one bad moment costs the next pages and not the whole load. Safe
// from several threads.
class HugePageBudget {
 public:
  // Whether the next page is worth asking for.
  bool allows() noexcept;
  // One that was asked for came.
  void count(bool slow) noexcept { (slow ? slow_ : quick_).fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<unsigned> left_alone_{0};
  std::atomic<unsigned> quick_{0};
  std::atomic<unsigned> slow_{0};
};

class HugePages {
 public:
  // For memory that nobody has touched. `data` is a multiple of kHugePage. `insist`: all of it is advised to be huge
  // already, and taken so whatever that costs.
  HugePages(std::byte* data, std::size_t nbytes, bool insist);

  // Whether all of [data, data + nbytes), whole pages of kHugePage, lies on huge ones. Pages that were never asked
  // about are asked for. What they hold is lost: before anything lands there.
  // `budget` bounds what that may cost: one for all that is loaded together.
  bool have(std::byte* data, std::uint64_t nbytes, HugePageBudget& budget) noexcept;

  // The memory has been used, also where nobody asked: what is not known to be huge stays as it is.
  void settle() noexcept;

 private:
  enum class Page : std::uint8_t { kUntouched, kSmall, kHuge };

  bool have_page(std::size_t number, HugePageBudget& budget) noexcept;
  Page ask_for(std::byte* data, HugePageBudget& budget) noexcept;
  Page ask_again(std::byte* data, HugePageBudget& budget) noexcept;

  std::byte* const data_;
  const bool insist_;
  std::vector<Page> pages_;  // the whole ones
};

}  // namespace penstock
