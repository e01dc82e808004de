// RangeReader: ranges of a file past the page cache, for those who read a little at a time from many threads.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "io/file.h"
#include "memory/arena.h"

namespace penstock {

// Safe from several threads.
class RangeReader {
 public:
  explicit RangeReader(std::shared_ptr<const File> file) : file_(std::move(file)), direct_(file_->direct()) {}

  // Calls `use` with the bytes of [offset, offset + nbytes).
  template <typename Use>
  void read(std::uint64_t offset, std::uint64_t nbytes, const Use& use) const {
    const std::uint64_t alignment = direct_.fd ? std::max<std::uint64_t>(direct_.alignment.offset, 1) : 1;
    const std::uint64_t begin = align_down(offset, alignment);
    const std::uint64_t length = align_up(offset + nbytes, alignment) - begin;
    thread_local Mapping scratch;
    if (scratch.size() < length) scratch = Mapping::anonymous(length);
    read_whole(begin, length, offset + nbytes - begin, scratch.data());
    use(scratch.data() + (offset - begin));
  }

 private:
  void read_whole(std::uint64_t begin, std::uint64_t length, std::uint64_t minimum, std::byte* data) const {
    if (direct_.fd) {
      const ssize_t count = ::pread(direct_.fd.get(), data, length, static_cast<off_t>(begin));
      if (count >= 0 && static_cast<std::uint64_t>(count) >= minimum) return;
    }
    // Short, interrupted or refused: the careful way, which also says what is wrong.
    file_->read(begin, data, minimum);
  }

  std::shared_ptr<const File> file_;
  const File::Direct& direct_;
};

}  // namespace penstock
