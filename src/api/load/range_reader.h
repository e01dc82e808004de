// RangeReader: ranges of a file, for those who read a little at a time from many threads (a conversion, which is asked
// for bytes while it writes). Cached files are read from the page cache, others past it: the route that a load takes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "io/file.h"
#include "memory/arena.h"
#include "plan/route.h"

namespace penstock {

// Safe from several threads.
class RangeReader {
 public:
  explicit RangeReader(std::shared_ptr<const File> file) : file_(std::move(file)) {
    FileFacts facts;
    facts.wanted = file_->size();
    facts.resident = file_->resident_bytes({0, file_->size()});
    facts.direct = facts.resident < facts.wanted && file_->direct().fd;
    const ReadRoute route = decide_read({.cache = CachePolicy::kCopy}, facts, {}, facts.wanted, 0);
    direct_ = route.path == ReadPath::kDirect || route.path == ReadPath::kByBlock;
  }

  // Calls `use` with the bytes of [offset, offset + nbytes).
  template <typename Use>
  void read(std::uint64_t offset, std::uint64_t nbytes, const Use& use) const {
    const std::uint64_t alignment = direct_ ? file_->direct().alignment.offset : 1;
    const std::uint64_t begin = align_down(offset, alignment);
    const std::uint64_t length = align_up(offset + nbytes, alignment) - begin;
    thread_local Mapping scratch;
    if (scratch.size() < length) scratch = Mapping::anonymous(length);
    const std::uint64_t minimum = offset + nbytes - begin;
    // Short, interrupted or refused: the careful way, which also says what is wrong.
    if (!direct_ || !file_->try_read_direct(begin, scratch.data(), length, minimum)) {
      file_->read(begin, scratch.data(), minimum);
    }
    use(scratch.data() + (offset - begin));
  }

 private:
  const std::shared_ptr<const File> file_;
  bool direct_ = false;
};

}  // namespace penstock
