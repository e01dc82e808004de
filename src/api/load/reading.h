// The steps that loads share: memory for tensors, a route for each file, and the read itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "api/load/facts.h"
#include "api/load/landing_memory.h"
#include "api/load/placement.h"
#include "api/load/selection.h"
#include "api/load/verification.h"
#include "transfer/device_use.h"
#include "transfer/session.h"

namespace penstock {

// One file's tensors with memory to land in.
struct PlacedFile {
  LandingMemory memory;
  Placement placement;  // its segments' addresses are real ones, their owners the tensors' numbers in the reader
};

// Takes memory for the selection and places its tensors there.
PlacedFile take_memory(const Reader::State& state, const FileSelection& selection, const LoadOptions& options,
                       DeviceUse& devices);

Tensor make_tensor(const TensorInfo& info, const PlacedTensor& placed, const LandingMemory& memory);

// What is read of one file, and where it goes.
struct WantedBytes {
  std::uint32_t file = 0;         // its number in the reader
  std::vector<Segment> segments;  // by offset
  LandingMemory memory;
  std::uint64_t largest_gap = tuning::kLargestGap;
};

// Gives every file its route, and its destination. `known` (optional): facts that were gathered already, one per file.
// `nbytes`: of the whole load.
std::vector<FileRead> route_reads(const Reader::State& state, std::vector<WantedBytes> wanted,
                                  const ReadRequest& request, std::span<const FileFacts> known, std::uint64_t nbytes,
                                  std::uint64_t block_size, const std::shared_ptr<HugePageBudget>& budget,
                                  DeviceUse& devices);

// Decides whether devices read files by themselves in this load.
void start_gds(const LoadOptions& options, DeviceUse& devices);

// Reads all of it, with progress, and says how in the statistics. `verification` (optional) is told of every byte, and
// what it wants besides is read too; whether it is content is for the caller to ask. `meanwhile`: see
// wait_with_progress().
Stats read_all(const Reader::State& state, std::vector<WantedBytes> wanted, const LoadOptions& options,
               DeviceUse& devices, std::span<const FileFacts> known = {}, Verification* verification = nullptr,
               const std::function<void()>& meanwhile = {});

// What a tensor takes in memory, converted as the options say.
std::uint64_t loaded_size(const TensorInfo& tensor, const LoadOptions& options);

// Room for `nbytes` of tensors, until they have landed. Throws Error(kMemory) where the budget has none.
[[nodiscard]] MemoryClaim require_room(const Reader::State& state, const Settings& settings, std::uint64_t nbytes);

// Everything that was selected, views included, in the reader's order.
std::vector<const TensorInfo*> all_selected(const Selection& selection);

}  // namespace penstock
