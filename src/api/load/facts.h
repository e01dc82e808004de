// What a load has to know before it takes a route, asked of the kernel once per file. See plan/route.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "api/load/selection.h"
#include "plan/route.h"

namespace penstock {

ReadRequest read_request(const LoadOptions& options);

// What a decision about mapping needs, for each file of the selection; little where the request has decided already.
std::vector<FileFacts> gather_facts(const Reader::State& state, const Selection& selection, const ReadRequest& request);

// The same for bytes of one file that are not whole tensors. `mapping`: it may be mapped.
FileFacts gather_facts(const Reader::State& state, std::uint32_t file, std::span<const ByteRange> stretches,
                       const ReadRequest& request, bool mapping);

// Adds what only reads need to know, which costs a second descriptor. `nbytes`: of the whole load.
void add_read_facts(const File& file, const ReadRequest& request, std::uint64_t nbytes, FileFacts& facts);

}  // namespace penstock
