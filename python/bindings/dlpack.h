// DLPack: how a tensor of another library takes memory over without a copy.
#pragma once

#include "memory.h"

namespace penstock::python {

// A capsule for one tensor of a block, which it keeps. Whoever takes it may let go of it on any thread.
//
// Types of less than a byte, and those that came with DLPack 1.1, are refused.
nb::object make_capsule(nb::handle_t<Memory> memory, std::string_view dtype, const nb::tuple& shape,
                        std::uint64_t offset);

}  // namespace penstock::python
