#include "api/load/slice_map.h"

#include <sys/mman.h>

#include "api/load/map.h"
#include "base/error.h"
#include "base/page.h"

namespace penstock {

struct SliceMap::Mapped {
  std::shared_ptr<MappedRange> range;
  std::map<std::uint64_t, std::uint64_t> handed_out;  // begin -> end

  bool overlaps(ByteRange wanted) const {
    const auto after = handed_out.lower_bound(wanted.end);
    return after != handed_out.begin() && std::prev(after)->second > wanted.begin;
  }
};

namespace {

// Lets go of the pages that only a slice had: what was written to them would stay in memory for as long as the mapping.
void release_pages(std::byte* data, std::uint64_t nbytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uint64_t begin = align_up(address, page_size());
  const std::uint64_t end = align_down(address + nbytes, page_size());
  if (begin < end) ::madvise(data + (begin - address), end - begin, MADV_DONTNEED);
}

}  // namespace

std::shared_ptr<std::byte> SliceMap::take(const File& file, ByteRange range) {
  if (range.size() == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Mapped> mapped = mapped_.lock();
  if (mapped == nullptr) {
    mapped = std::make_shared<Mapped>();
    try {
      mapped->range = map_range(file, {0, file.size()});
    } catch (const Error&) {
      return nullptr;  // the range alone may fit, and says what is wrong where it does not
    }
    mapped_ = mapped;
  }
  if (mapped->overlaps(range)) return nullptr;
  mapped->handed_out.emplace(range.begin, range.end);
  std::byte* data = mapped->range->at(range.begin);
  return {data, [mapped, nbytes = range.size()](std::byte* bytes) { release_pages(bytes, nbytes); }};
}

}  // namespace penstock
