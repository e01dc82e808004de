// A copy of what a Writer was given, so that a save in the background leaves the caller's memory alone.
#pragma once

#include <functional>
#include <memory>

#include "api/writer_state.h"
#include "memory/arena.h"

namespace penstock {

// Copies every tensor to memory of the pool, on several threads, and has `work` read from there. The arena must live
// for as long as it does. Throws what `check`, which is called now and then on any thread, throws.
std::shared_ptr<Arena> take_snapshot(Writer::State& work, HostPool& pool, const std::function<void()>& check);

}  // namespace penstock
