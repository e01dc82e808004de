// DeviceTensors: tensors in memory of simulated devices, with the same bytes on the host to compare with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/device.h"
#include "penstock/writer.h"
#include "testing/files.h"
#include "testing/simulator.h"

namespace penstock::testing {

class DeviceTensors {
 public:
  static constexpr int kHost = -1;

  // Random bytes. `byte_strides`: none for a contiguous one.
  void add(std::string name, DType dtype, Shape shape, std::vector<std::int64_t> byte_strides, int device) {
    Entry entry{std::move(name), dtype, std::move(shape), std::move(byte_strides)};
    const std::size_t size = place(entry);
    entry.bytes = random_bytes(size, static_cast<std::uint32_t>(entries_.size() + 1));
    put(std::move(entry), device);
  }

  // Numbers of many sizes, none of them a NaN, whose payload a conversion may change.
  void add_numbers(std::string name, DType dtype, Shape shape, std::vector<std::int64_t> byte_strides, int device) {
    Entry entry{std::move(name), dtype, std::move(shape), std::move(byte_strides)};
    const std::size_t size = place(entry);
    entry.bytes = random_bytes(size, static_cast<std::uint32_t>(entries_.size() + 1));
    const std::size_t width = dtype_bits(dtype) / 8;
    for (std::size_t i = width - 1; i < size; i += width) entry.bytes[i] &= std::byte{0xbb};
    put(std::move(entry), device);
  }

  void add_to(Writer& writer) const { add_all(writer, /*from_device=*/true); }
  void add_from_host(Writer& writer) const { add_all(writer, /*from_device=*/false); }

  // As it is stored.
  std::uint64_t nbytes(std::optional<DType> dtype) const {
    std::uint64_t total = 0;
    for (const Entry& entry : entries_) {
      const bool casts = dtype && dtype_can_cast(entry.dtype, *dtype);
      total += count_of(entry) * dtype_bits(casts ? *dtype : entry.dtype) / 8;
    }
    return total;
  }

  // Other bytes on the devices, at once; the host keeps the old ones, which restore() brings back.
  void overwrite(SimulatedDevices& sim) const {
    for (const Entry& entry : entries_) {
      poke(sim, entry, std::vector<std::byte>(entry.bytes.size(), std::byte{0xee}));
    }
  }
  void restore(SimulatedDevices& sim) const {
    for (const Entry& entry : entries_) poke(sim, entry, entry.bytes);
  }

 private:
  struct Entry {
    std::string name;
    DType dtype = DType::kU8;
    Shape shape;
    std::vector<std::int64_t> byte_strides;
    std::size_t first = 0;  // where the first element is in its bytes
    std::vector<std::byte> bytes = {};
    AllocatedMemory memory = {};  // none for one of the host
  };

  static void poke(SimulatedDevices& sim, const Entry& entry, const std::vector<std::byte>& bytes) {
    if (entry.memory.data == nullptr) return;
    sim.poke(reinterpret_cast<std::uintptr_t>(entry.memory.data), bytes.data(), bytes.size());
  }

  static std::uint64_t count_of(const Entry& entry) {
    std::uint64_t count = 1;
    for (const std::int64_t length : entry.shape) count *= static_cast<std::uint64_t>(length);
    return count;
  }

  // Where the first element is; gives how many bytes the tensor covers.
  static std::size_t place(Entry& entry) {
    const std::size_t width = dtype_bits(entry.dtype) / 8;
    if (entry.byte_strides.empty()) return count_of(entry) * width;
    std::int64_t below = 0;
    std::int64_t above = 0;
    for (std::size_t i = 0; i < entry.shape.size(); ++i) {
      const std::int64_t reach = (entry.shape[i] - 1) * entry.byte_strides[i];
      (reach < 0 ? below : above) += reach;
    }
    entry.first = static_cast<std::size_t>(-below);
    return static_cast<std::size_t>(above - below) + width;
  }

  void put(Entry entry, int device) {
    if (device != kHost && !entry.bytes.empty()) {
      entry.memory = device_allocator(device)(entry.bytes.size());
      copy_to_device(entry.memory.data, entry.bytes.data(), entry.bytes.size());
    }
    entries_.push_back(std::move(entry));
  }

  void add_all(Writer& writer, bool from_device) const {
    for (const Entry& entry : entries_) {
      const bool on_device = from_device && entry.memory.data != nullptr;
      const std::byte* const data = (on_device ? entry.memory.data : entry.bytes.data()) + entry.first;
      if (entry.byte_strides.empty()) {
        writer.add(entry.name, entry.dtype, entry.shape, data);
      } else {
        writer.add(entry.name, entry.dtype, entry.shape, data, entry.byte_strides);
      }
    }
  }

  std::vector<Entry> entries_;
};

}  // namespace penstock::testing
