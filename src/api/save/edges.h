// The checksums of what interior_parts() of a layout leaves out: less than two pages of each tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "api/save/file_layout.h"
#include "transfer/checksum_collector.h"
#include "transfer/crew.h"

namespace penstock {

// `crew` has pinned blocks where a tensor lies on a device. Throws Error.
void add_edges(const FileContent& content, const FileLayout& layout, std::uint64_t alignment, Crew& crew,
               ChecksumCollector& collector);

}  // namespace penstock
