// A copy of the tensors of a save, so that one in the background leaves the caller's memory alone.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "api/shard_save.h"
#include "memory/arena.h"
#include "penstock/options.h"

namespace penstock {

// Copies every tensor to memory of the pool, on several threads, and has the files written from there. Each lies there
// as it will lie in its file, so that direct I/O can take them straight. Throws what `check`, which is called now and
// then on any thread, throws.
void take_snapshot(std::span<const std::unique_ptr<ShardSave>> files, HostPool& pool, const IoOptions& io,
                   const std::function<void()>& check);

}  // namespace penstock
