#include "api/load/landing_memory.h"

#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"

namespace penstock {
namespace {

constexpr std::uint64_t kPageOfMemory = 4096;

LandingMemory pool_memory(std::uint64_t nbytes, const LoadOptions& options) {
  const std::shared_ptr<Arena> arena = host_pool(options.pool)->allocate(roomy(nbytes));
  LandingMemory memory;
  memory.data = arena->data();
  memory.facts = {.reused = arena->reused, .may_have_huge_pages = arena->pages != nullptr};
  memory.pages = arena->pages.get();
  memory.owner = arena;
  memory.taken = nbytes;
  return memory;
}

std::shared_ptr<void> register_for_files(const LandingMemory& memory, GdsUse& gds) {
  if (memory.nbytes == 0) {
    gds.note_unregistered("the memory is the caller's");
    return nullptr;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data);
  return gds.register_memory(memory.lanes->device(), address, memory.nbytes);
}

}  // namespace

LandingMemory given_memory(std::byte* data, bool reused, const MemoryPlace& place, DeviceUse& devices) {
  LandingMemory memory;
  memory.data = data;
  memory.facts = {.reused = reused, .on_device = place.device != nullptr, .shared_with_device = place.unified};
  if (place.device != nullptr) memory.lanes = devices.lanes(place.device);
  return memory;
}

LandingMemory take_memory(std::uint64_t nbytes, const LoadOptions& options, DeviceUse& devices) {
  if (!options.allocate) return pool_memory(nbytes, options);
  // Large runs of tensors lie at addresses congruent to their offsets, counted from a page.
  AllocatedMemory allocated = options.allocate(nbytes + kPageOfMemory - 1);
  if (allocated.data == nullptr) {
    throw Error(ErrorKind::kMemory, fmt::format("the allocator gave no memory for {} bytes", nbytes));
  }
  const auto address = align_up(reinterpret_cast<std::uintptr_t>(allocated.data), kPageOfMemory);
  LandingMemory memory =
      given_memory(reinterpret_cast<std::byte*>(address), /*reused=*/false, find_place(allocated.data), devices);
  memory.owner = std::move(allocated.owner);
  memory.nbytes = nbytes;
  if (memory.lanes != nullptr && allocated.stream) DeviceUse::wait_for(*memory.lanes, *allocated.stream);
  return memory;
}

std::shared_ptr<Destination> make_destination(const LandingMemory& memory, const ReadRoute& route,
                                              std::uint64_t staging_size, const std::shared_ptr<HugePageBudget>& budget,
                                              const std::shared_ptr<DeviceFile>& file, DeviceUse& devices) {
  if (memory.lanes != nullptr) {
    DeviceDestination::Storage storage;
    if (file != nullptr) storage = {file, register_for_files(memory, *devices.gds()), devices.gds()};
    return std::make_shared<DeviceDestination>(memory.lanes, memory.owner, staging_size, std::move(storage));
  }
  const HostDestination::Memory host{memory.owner, memory.pages, memory.facts.reused};
  return std::make_shared<HostDestination>(host, route.landing, budget);
}

void fill(const LandingMemory& memory, std::span<const std::byte> bytes) {
  if (memory.lanes == nullptr) {
    std::memcpy(memory.data, bytes.data(), bytes.size());
  } else {
    memory.lanes->fill(reinterpret_cast<std::uintptr_t>(memory.data), bytes.data(), bytes.size());
  }
}

Tensor moved_to_given(Tensor tensor, const LoadOptions& options) {
  if (!options.allocate) return tensor;
  DeviceUse devices;
  const LandingMemory memory = take_memory(tensor.bytes.size(), options, devices);
  fill(memory, tensor.bytes);
  tensor.bytes = {memory.data, tensor.bytes.size()};
  tensor.memory = memory.owner;
  return tensor;
}

}  // namespace penstock
