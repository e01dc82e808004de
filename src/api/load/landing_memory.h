// LandingMemory: memory that loaded bytes go to: the pool's, or the caller's, of the host or of a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory/arena.h"
#include "penstock/options.h"
#include "plan/route.h"
#include "transfer/destination.h"
#include "transfer/device_use.h"

namespace penstock {

struct LandingMemory {
  std::byte* data = nullptr;    // of a device: its address, not to be touched
  std::shared_ptr<void> owner;  // nothing: the caller's, who waits
  MemoryFacts facts;
  HugePages* pages = nullptr;    // of memory of the pool; nothing: it has none
  std::shared_ptr<Lanes> lanes;  // of memory of a device
  std::uint64_t taken = 0;       // of the host's memory, by this load
  std::uint64_t nbytes = 0;      // from `data` on; 0: not known, the caller's, in many places
};

// At least `nbytes`, on a page: of LoadOptions::allocate, or else of the pool.
LandingMemory take_memory(std::uint64_t nbytes, const LoadOptions& options, DeviceUse& devices);

// Memory that the caller has. `reused`: it is known to be there.
LandingMemory given_memory(std::byte* data, bool reused, const MemoryPlace& place, DeviceUse& devices);

// `file` (optional): the device reads it by itself.
std::shared_ptr<Destination> make_destination(const LandingMemory& memory, const ReadRoute& route,
                                              std::uint64_t staging_size, const std::shared_ptr<HugePageBudget>& budget,
                                              const std::shared_ptr<DeviceFile>& file, DeviceUse& devices);

// Copies what is on the host to where `memory` is.
void fill(const LandingMemory& memory, std::span<const std::byte> bytes);

// A tensor of the host's, moved to memory of LoadOptions::allocate where there is one.
Tensor moved_to_given(Tensor tensor, const LoadOptions& options);

}  // namespace penstock
