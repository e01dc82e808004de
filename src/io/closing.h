// Closing the last descriptor of a file without a name frees its blocks, which takes long for a large file where the
// filesystem discards them: 0.15 seconds per GiB were seen. Nobody who saves need wait for that.
#pragma once

#include <functional>

#include "base/unique_fd.h"

namespace penstock {

// Whether closing `fd` may free so much that it is worth a thread.
bool frees_much(int fd);

// Closes it on a thread of its own. The process's end waits for that, as it does for every descriptor.
void close_in_background(UniqueFd fd) noexcept;

// Runs `work`, which throws nothing, on a thread that wait_for_closing() waits for; false where no thread is to be had.
bool run_while_closing(std::function<void()> work) noexcept;

// Waits until nothing is being closed: its space can be had then. Gives up after a minute.
void wait_for_closing();

}  // namespace penstock
