#include "api/save/device_snapshot.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <iterator>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/error.h"
#include "base/tuning.h"
#include "transfer/device_source.h"

namespace penstock {
namespace {

constexpr std::uint64_t kRegionAlignment = 4 * kKiB;
constexpr std::uint64_t kHostAlignment = 64;

std::uint64_t address_of(const std::byte* data) {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(data));
}

// Throws Error(kMemory) where the device has less free than such a snapshot leaves.
void require_free(Device& device, std::uint64_t nbytes) {
  const std::uint64_t free = device.memory().free;
  if (free / tuning::kFreePerDeviceSnapshot >= nbytes) return;
  throw Error(ErrorKind::kMemory, fmt::format("{} has {} bytes free, and {} bytes want {} times as much", device.name(),
                                              free, nbytes, tuning::kFreePerDeviceSnapshot));
}

std::shared_ptr<void> allocate_on(Lanes& lanes, std::uint64_t nbytes, const Allocator& allocate) {
  if (!allocate) return lanes.device().allocate(nbytes);
  AllocatedMemory memory = allocate(nbytes);
  if (memory.data == nullptr || find_place(memory.data).device.get() != &lanes.device()) {
    throw Error(ErrorKind::kMemory, fmt::format("the allocator gave no memory of {}", lanes.device().name()));
  }
  if (memory.stream) DeviceUse::wait_for(lanes, *memory.stream);
  return {std::move(memory.owner), memory.data};
}

}  // namespace

std::vector<DeviceSnapshot::Region> DeviceSnapshot::find_regions(const Writer::State& state) {
  std::vector<Region> regions;
  for (const AddedTensor& tensor : state.tensors) {
    if (tensor.lanes == nullptr) continue;
    regions.push_back({tensor.lanes, address_of(tensor.extent.first), address_of(tensor.extent.second), 0, {}});
  }
  std::sort(regions.begin(), regions.end(), [](const Region& a, const Region& b) {
    return a.lanes != b.lanes ? std::less<const Lanes*>()(a.lanes.get(), b.lanes.get()) : a.begin < b.begin;
  });
  std::vector<Region> joined;
  for (Region& region : regions) {
    // Those that only touch may be of two allocations, which can't be copied as one.
    if (!joined.empty() && joined.back().lanes == region.lanes && region.begin < joined.back().end) {
      joined.back().end = std::max(joined.back().end, region.end);
    } else {
      joined.push_back(std::move(region));
    }
  }
  return joined;
}

// `regions`: of one device.
void DeviceSnapshot::allocate_copies(std::span<Region> regions, const Allocator& allocate) {
  std::uint64_t nbytes = 0;
  for (const Region& region : regions) nbytes += align_up(region.end - region.begin, kRegionAlignment);
  Lanes& lanes = *regions.front().lanes;
  require_free(lanes.device(), nbytes);
  const std::shared_ptr<void> memory = allocate_on(lanes, nbytes, allocate);
  std::uint64_t address = address_of(static_cast<const std::byte*>(memory.get()));
  for (Region& region : regions) {
    region.copy = address;
    region.owner = memory;
    address += align_up(region.end - region.begin, kRegionAlignment);
  }
}

std::unique_ptr<DeviceSnapshot> DeviceSnapshot::prepare(Writer::State& state, const Allocator& allocate,
                                                        std::string& reason) {
  auto snapshot = std::make_unique<DeviceSnapshot>();
  std::vector<Region>& regions = snapshot->regions_;
  regions = find_regions(state);
  if (regions.empty()) {
    reason = "no tensor lies on a device";
    return nullptr;
  }
  try {
    const bool one_device = regions.front().lanes == regions.back().lanes;
    for (auto first = regions.begin(); first != regions.end();) {
      const auto last =
          std::find_if(first, regions.end(), [&](const Region& region) { return region.lanes != first->lanes; });
      allocate_copies({first, last}, one_device ? allocate : Allocator());
      first = last;
    }
    return snapshot;
  } catch (const std::exception& error) {
    // Whatever it was, the host's memory will do.
    reason = error.what();
    return nullptr;
  }
}

void DeviceSnapshot::take(std::span<const std::unique_ptr<FileSave>> files, HostPool& pool,
                          const std::function<void()>& check) {
  copy_regions();
  check();
  copy_host(files, pool, check);
  for (const auto& file : files) {
    for (Origin& origin : file->content.origins) {
      if (origin.device == nullptr) continue;
      const Region& region = region_of(*origin.device);
      origin.device = origin.device->moved(static_cast<std::int64_t>(region.copy - region.begin), region.owner);
    }
  }
  regions_.clear();  // the memory goes with the last origin
}

void DeviceSnapshot::copy_regions() const {
  std::vector<Lane*> lanes;
  try {
    for (const Region& region : regions_) {
      Lane& lane = region.lanes->mine();
      if (std::find(lanes.begin(), lanes.end(), &lane) == lanes.end()) lanes.push_back(&lane);
      lane.within_device(region.copy, region.begin, region.end - region.begin);
    }
  } catch (...) {
    for (Lane* lane : lanes) lane->drain();
    throw;
  }
  for (Lane* lane : lanes) lane->drain();
  for (Lane* lane : lanes) lane->check();
}

void DeviceSnapshot::copy_host(std::span<const std::unique_ptr<FileSave>> files, HostPool& pool,
                               const std::function<void()>& check) {
  std::uint64_t nbytes = 0;
  const auto for_each = [&](const auto& visit) {
    for (const auto& file : files) {
      for (std::size_t i = 0; i < file->content.origins.size(); ++i) {
        if (file->content.origins[i].device == nullptr) visit(file->content.origins[i], file->content.specs[i].nbytes);
      }
    }
  };
  for_each([&](Origin&, std::uint64_t size) { nbytes += align_up(size, kHostAlignment); });
  if (nbytes == 0) return;
  arena_ = pool.allocate(nbytes);
  std::byte* to = arena_->data();
  for_each([&](Origin& origin, std::uint64_t size) {
    check();
    const auto length = static_cast<std::size_t>(size);
    origin.data == nullptr ? origin.fill(0, {to, length}) : copy_past_caches(to, origin.data, length);
    origin = {to, {}};
    to += align_up(size, kHostAlignment);
  });
}

// Every tensor of a device lies in one.
const DeviceSnapshot::Region& DeviceSnapshot::region_of(const DeviceSource& source) const {
  const auto behind =
      std::upper_bound(regions_.begin(), regions_.end(), source, [](const DeviceSource& wanted, const Region& region) {
        const std::less<const Lanes*> before;
        if (&wanted.lanes() != region.lanes.get()) return before(&wanted.lanes(), region.lanes.get());
        return wanted.address() < region.begin;
      });
  return *std::prev(behind);
}

}  // namespace penstock
