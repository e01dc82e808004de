// Whether memory is short for slices: who asks for them may keep them all, as from_pretrained does with a model that is
// larger than memory.
#pragma once

#include <cstdint>

#include "penstock/options.h"

namespace penstock {

// Whether the next slice, of `nbytes`, had better be mapped than copied. All slices of the process are counted
// together, and the system is asked once for many small ones. Never where a budget was named. Safe from several
// threads.
bool is_short_of_memory(std::uint64_t nbytes, const IoOptions& options);

}  // namespace penstock
