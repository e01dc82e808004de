#include "memory/populate.h"

#include <sys/mman.h>

#include "base/bytes.h"
#include "base/page.h"
#include "base/tuning.h"

namespace penstock {
void populate(std::byte* data, std::uint64_t nbytes) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uint64_t begin = align_up(address, page_size());
  const std::uint64_t end = align_down(address + nbytes, page_size());
  if (end < begin + tuning::kSmallestPopulate) return;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
}

}  // namespace penstock
