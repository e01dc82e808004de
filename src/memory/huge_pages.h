// HugePages: which pages of an arena are huge ones, and for which the kernel is asked.
//
// A page of 2 MiB takes one fault in place of 512, and is one segment of a request in place of hundreds: direct reads
// land there in place, at the speed of the drive. But where a hypervisor has taken free memory back, or memory is in
// pieces, a huge page takes milliseconds, while small ones are there at once. Nobody tells beforehand. So they are
// asked for one by one, and timed; after a dear one some pages stay small, and ever more of them while the next is dear
// too.
//
// Safe from several threads, as long as no two ask about the same page at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

inline constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

// Transparent ones for this process: "always", "madvise" or "never"; empty where the kernel does not say.
std::string huge_pages_setting();

// Says for how many pages huge ones are not worth asking for. Apart from HugePages for its own test.
class HugePageLuck {
 public:
  // False as often as the last dear pages suggest.
  bool worth_asking() noexcept;
  void was_cheap() noexcept;
  void was_dear() noexcept;

 private:
  std::atomic<int> to_leave_{0};    // pages that stay small before the next is asked for
  std::atomic<int> leave_next_{0};  // as many after the next dear one; 0: none was dear yet
  std::atomic<int> cheap_{0};       // in a row
};

class HugePages {
 public:
  // For memory that nobody has touched. `data` is a multiple of kHugePage. `insist`: all of it is asked for, whatever
  // that takes.
  HugePages(std::byte* data, std::size_t nbytes, bool insist);

  // Whether all of [data, data + nbytes), whole pages of kHugePage, lies on huge ones. Pages that were never asked
  // about are asked for, and lose what they hold: before anything lands there.
  bool have(std::byte* data, std::uint64_t nbytes) noexcept;

 private:
  enum class Page : std::uint8_t { kUntouched, kSmall, kHuge };

  bool have_page(std::size_t number) noexcept;

  std::byte* const data_;
  const bool insist_;
  std::vector<Page> pages_;  // the whole ones
  HugePageLuck luck_;
};

}  // namespace penstock
