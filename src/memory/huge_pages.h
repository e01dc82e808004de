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

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

inline constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

// Transparent ones for this process: "always", "madvise" or "never"; empty where the kernel does not say.
std::string huge_pages_setting();

// Whether the next huge page is worth asking for, by what the last ones took. Safe from several threads.
class HugePageLuck {
 public:
  // Handed out with every page that is asked for. What is told of one that was asked for before the last dear one says
  // nothing new: several threads are kept waiting by the same shortage.
  using Question = unsigned;

  // Nothing, as often as the last dear pages suggest.
  std::optional<Question> worth_asking();
  void was_cheap(Question question);
  void was_dear(Question question);

 private:
  std::mutex mutex_;
  Question current_ = 0;
  int to_leave_ = 0;    // pages that stay small before the next is asked for
  int leave_last_ = 0;  // as many after the last dear one; 0: none was dear yet
  int cheap_ = 0;       // in a row
};

class HugePages {
 public:
  // For memory that nobody has touched. `data` is a multiple of kHugePage. `insist`: all of it is advised to be huge
  // already, and taken so whatever that costs.
  HugePages(std::byte* data, std::size_t nbytes, bool insist);

  // Whether all of [data, data + nbytes), whole pages of kHugePage, lies on huge ones. Pages that were never asked
  // about are asked for. What they hold is lost: before anything lands there.
  // `luck` decides whether that is worth it, and learns from it: one for all that is loaded together.
  bool have(std::byte* data, std::uint64_t nbytes, HugePageLuck& luck) noexcept;

  // The memory has been used, also where nobody asked: what is not known to be huge stays as it is.
  void settle() noexcept;

 private:
  enum class Page : std::uint8_t { kUntouched, kSmall, kHuge };

  bool have_page(std::size_t number, HugePageLuck& luck) noexcept;
  Page ask_for(std::byte* data, HugePageLuck& luck) noexcept;
  Page ask_again(std::byte* data, HugePageLuck& luck) noexcept;

  std::byte* const data_;
  const bool insist_;
  std::vector<Page> pages_;  // the whole ones
};

}  // namespace penstock
