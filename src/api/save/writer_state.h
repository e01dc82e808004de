// What a Writer has collected, and the save that commit() and save_async() run.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "format/layout.h"
#include "memory/arena.h"
#include "penstock/writer.h"
#include "transfer/device_use.h"
#include "transfer/write.h"

namespace penstock {

// One tensor that was added.
struct AddedTensor {
  // The memory that a tensor reads: [first, last); null for one that is produced.
  using Extent = std::pair<const std::byte*, const std::byte*>;

  TensorSpec spec;  // as it is stored
  Origin origin;
  Extent extent;
  const std::byte* data = nullptr;         // the first element; null for one that is produced
  std::vector<std::int64_t> byte_strides;  // empty for a contiguous one
  DType memory_dtype = DType::kU8;         // before any conversion
  std::shared_ptr<Lanes> lanes;            // of the device that it lies on, once that is known
};

struct Writer::State {
  // Adds a tensor of `dtype`, which is stored as options.dtype where that asks for a conversion.
  void add(std::string name, DType dtype, Shape shape, Origin origin, AddedTensor::Extent extent, const std::byte* data,
           std::vector<std::int64_t> byte_strides);

  // The one time that it is saved. Throws Error(kArgument) the second time.
  void begin_commit();

  std::filesystem::path path;
  SaveOptions options;
  std::vector<AddedTensor> tensors;
  std::uint64_t nbytes = 0;
  DeviceUse devices;                            // that tensors lie on; see find_devices()
  bool has_shared_memory = false;               // of a device, but read by the host as its own
  std::vector<std::shared_ptr<Lanes>> streams;  // that the host has to wait for before it reads that
  bool committed = false;
};

// Asks of each tensor whether it lies on a device; if so its origin becomes one there. Before anything reads origins.
void find_devices(Writer::State& state);

// Tensors are read after what is queued on the caller's streams now. Who reads them calls settle_streams() first, which
// waits where the host itself reads memory that it shares with a device; copies wait by themselves.
void wait_for_streams(Writer::State& state);
void settle_streams(Writer::State& state);

// Finds tensors over the same memory and refuses them or stores them once, as the options say.
void resolve_shared(Writer::State& state);

struct WriterAccess {
  static Writer::State& state(Writer& writer);
};

}  // namespace penstock
