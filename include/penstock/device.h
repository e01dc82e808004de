// Memory of devices: which there are, what lies on them, and how a program without an allocator of its own gets some.
//
// Nothing has to be installed or linked for this: the driver's library is opened when it is first needed. A device is
// recognised by asking the driver about an address, so whoever allocated it, its bytes can be loaded and saved. Safe
// from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/export.h"

namespace PENSTOCK_EXPORT penstock {

// A queue of work on a device, as the library that made it knows it: for CUDA a CUstream or cudaStream_t. Null: the
// device's default one.
struct DeviceStream {
  int device = 0;
  void* handle = nullptr;
};

// Memory that an allocator of the caller's gave: of a device, or of the host.
struct AllocatedMemory {
  std::byte* data = nullptr;
  std::shared_ptr<void> owner;         // let go of when the last tensor in it is
  std::optional<DeviceStream> stream;  // what is queued there may still use the memory: writing to it waits for that
};

// Gives at least `nbytes`; may throw, which ends the load and is thrown by it. Called on threads of the caller's only:
// the one that called load(), or next() of a stream.
using Allocator = std::function<AllocatedMemory(std::uint64_t nbytes)>;

// One device, as its driver describes it.
struct DeviceInfo {
  int number = 0;    // as the driver counts: CUDA_VISIBLE_DEVICES applies
  std::string name;  // "cuda:0 (NVIDIA H100)"
  std::uint64_t total_memory = 0;
  int numa_node = -1;    // -1: not known
  bool unified = false;  // it and the host share their memory
};

// The devices that can be used. Where there are none, `why_none` (optional) is one sentence.
std::vector<DeviceInfo> list_devices(std::string* why_none = nullptr);

// The number of the device whose memory this is; nothing for memory of the host. Memory that both can reach (managed,
// pinned) is the host's here. Throws Error(kDevice) in a child of fork() for memory that only the parent has.
std::optional<int> device_of(const void* address);

// Takes memory of a device from its driver. Throws Error(kDevice) when there is no such device.
Allocator device_allocator(int device);

// Copies between device and host, through pinned memory, and waits. Throws Error(kDevice).
void copy_to_host(void* to, const void* device_address, std::uint64_t nbytes);
void copy_to_device(void* device_address, const void* from, std::uint64_t nbytes);

}  // namespace penstock
