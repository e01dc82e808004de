// A copy of the tensors of a save, so that one in the background leaves the caller's memory alone.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "api/save/file_save.h"
#include "memory/arena.h"
#include "penstock/options.h"
#include "transfer/device_use.h"

namespace penstock {

// Makes an image of every file in memory of the pool, on several threads, and has them written from there: straight, in
// one stretch each, with the checksums of the tensors known already. What lies on `devices` is fetched through pinned
// memory. Throws what `check`, which is called now and then on any thread, throws.
void take_snapshot(std::span<const std::unique_ptr<FileSave>> files, HostPool& pool, const IoOptions& io,
                   DeviceUse& devices, const std::function<void()>& check);

}  // namespace penstock
