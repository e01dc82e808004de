// SliceMap: one private mapping of a file, which the slices of a reader share: the kernel maps neighbouring pages
// together, and large pages of the cache as such, which it can't do for a mapping of one tensor.
//
// Each byte is handed out once. Who asks for bytes that somebody was given gets none and maps for himself, so writing
// to one tensor never shows in another. The mapping goes with its last slice; the pages of a slice are let go of with
// it. Safe from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/bytes.h"
#include "io/file.h"

namespace penstock {

class SliceMap {
 public:
  // Null for no bytes, where some of them were handed out, or where there is no room for the mapping.
  std::shared_ptr<std::byte> take(const File& file, ByteRange range);

 private:
  struct Mapped;

  std::mutex mutex_;
  std::weak_ptr<Mapped> mapped_;
};

}  // namespace penstock
