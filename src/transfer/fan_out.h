// Numbered pieces of work, done by several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace penstock {

// Calls work(0) to work(count - 1), in about this order, on the calling thread and up to `threads` - 1 others: fewer
// where they can't be had. Throws what a call threw first, when all have stopped; pieces not begun by then are left
// out.
void fan_out(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& work);

}  // namespace penstock
