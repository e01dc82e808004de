// Memory of the simulated devices, given out as torch's own allocators do.
#pragma once

#include <c10/core/Allocator.h>

#include "driver.h"

namespace sim_torch {

// Keeps what is freed, and gives it out again on the stream that it was made for without waiting for what is queued
// there: work of that stream comes in its order, and whoever uses another stream has to wait.
c10::Allocator* device_allocator();

// Host memory that copies need not pass through the driver's own for.
c10::Allocator* pinned_allocator();

// The memory is used on that stream too: it is not given out again before that has passed.
void record_use(const c10::DataPtr& data, Handle stream);

}  // namespace sim_torch
