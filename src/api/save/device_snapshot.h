// A copy of the tensors of a save on the devices where they lie: the caller's memory is free after a copy within the
// device, and the copies are written from there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/save/file_save.h"
#include "api/save/writer_state.h"
#include "memory/arena.h"
#include "penstock/device.h"

namespace penstock {

class DeviceSnapshot {
 public:
  // Takes the memory, on the thread of the caller. Null, with the reason, where it can't be had: nothing has happened
  // then. `allocate` (optional) knows no devices, so that it is asked only where there is one.
  static std::unique_ptr<DeviceSnapshot> prepare(Writer::State& state, const Allocator& allocate, std::string& reason);

  // Copies everything and has `files` written from the copies. What lies on the host goes to memory of the pool. Throws
  // Error, and what `check` throws.
  void take(std::span<const std::unique_ptr<FileSave>> files, HostPool& pool, const std::function<void()>& check);

 private:
  // Memory of a device that tensors cover; those that overlap are in one.
  struct Region {
    std::shared_ptr<Lanes> lanes;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t copy = 0;       // address
    std::shared_ptr<void> owner;  // of that
  };

  static std::vector<Region> find_regions(const Writer::State& state);
  static void allocate_copies(std::span<Region> regions, const Allocator& allocate);
  void copy_regions() const;
  void copy_host(std::span<const std::unique_ptr<FileSave>> files, HostPool& pool, const std::function<void()>& check);
  const Region& region_of(const DeviceSource& source) const;

  std::vector<Region> regions_;   // by device and address
  std::shared_ptr<Arena> arena_;  // what the host had
};

}  // namespace penstock
