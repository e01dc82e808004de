// Copying much: memcpy keeps what it writes in the caches, and reads every line of the destination to get it there.
#pragma once

#include <cstddef>

namespace penstock {

// Like memcpy, but past the caches where `nbytes` are more than they would hold for long: half of the time for large
// blocks that nobody reads at once.
void copy_past_caches(std::byte* to, const std::byte* from, std::size_t nbytes) noexcept;

// What copy_past_caches is on processors without SSE2. Here for the test that compares the two.
void copy_portably(std::byte* to, const std::byte* from, std::size_t nbytes) noexcept;

}  // namespace penstock
