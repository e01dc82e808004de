// Work that nobody need wait for, on one thread that lives only while there is any.
//
// The process's end does not wait for it. A child of fork() starts without any: what its parent has still to begin is
// dropped there, with everything that it holds.
#pragma once

#include <chrono>
#include <functional>

namespace penstock {

using Clock = std::chrono::steady_clock;

// What a piece of work is for.
enum class Chore { kClosing, kCooling };

// Runs `work`, which throws nothing, at `when` or as soon after it as everything before it is done. Throws
// std::system_error when there is no thread to be had.
void do_later(Chore chore, Clock::time_point when, std::function<void()> work);

// Waits until all of that kind which was asked for so far is done; false when `longest` has passed before.
bool wait_for(Chore chore, Clock::duration longest);

}  // namespace penstock
