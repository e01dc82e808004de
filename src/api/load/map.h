// Mapping: zero-copy, private, writable views of the page cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "api/load/selection.h"
#include "memory/arena.h"
#include "plan/route.h"

namespace penstock {

// A private mapping of a range of a file. Tensors hold it, and with it the bytes, for as long as the file keeps them.
struct MappedRange {
  Mapping mapping;
  std::uint64_t offset = 0;  // in the file, of the mapping's first byte

  // Null for an empty range.
  std::byte* at(std::uint64_t file_offset) const noexcept {
    return mapping.data() == nullptr ? nullptr : mapping.data() + (file_offset - offset);
  }
};

// Throws Error.
std::shared_ptr<MappedRange> map_range(const File& file, ByteRange range);

// Brings into the page cache what it lacks of what `tensors` need, where a failed read is an error and not yet a
// signal. `arrived` is told of every further stretch of bytes that is there.
void complete(const File& file, std::span<const TensorInfo* const> tensors, const MappedRange& mapped,
              const std::function<void(std::uint64_t)>& arrived);

// Tensors over a mapping, in the order of `tensors`. Those that are misaligned in the file are copied to `pool`.
std::vector<Tensor> map_tensors(const File& file, std::span<const TensorInfo* const> tensors,
                                const std::shared_ptr<MappedRange>& mapped, HostPool& pool, Stats& stats);

// Says in the statistics, which have counted what was copied, that `nbytes` were mapped and why.
void describe_mapping(const MapDecision& decision, std::uint64_t nbytes, Stats& stats);

}  // namespace penstock
