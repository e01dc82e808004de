// Faulting memory in, many pages in one call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

// Backs the whole pages of [data, data + nbytes) with memory, as a write to each of them would, at about two thirds of
// the cost. A hint: where the kernel can't (before 5.14), the writes that follow do it.
void populate(std::byte* data, std::uint64_t nbytes) noexcept;

}  // namespace penstock
