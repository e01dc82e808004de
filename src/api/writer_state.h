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
#include "transfer/write.h"

namespace penstock {

struct Writer::State {
  // The memory that a tensor reads: [first, last); null for one that is produced.
  using Extent = std::pair<const std::byte*, const std::byte*>;

  // Adds a tensor of `dtype`, which is stored as options.dtype where that asks for a conversion.
  void add(std::string name, DType dtype, Shape shape, Origin origin, Extent extent,
           std::vector<std::int64_t> byte_strides);

  std::filesystem::path path;
  SaveOptions options;
  std::vector<TensorSpec> specs;
  std::vector<Origin> origins;                     // of each spec
  std::vector<Extent> extents;                     // of each spec
  std::vector<std::vector<std::int64_t>> strides;  // of each strided spec; empty for the others
  std::vector<DType> memory_dtypes;                // of each spec, before any conversion
  std::uint64_t nbytes = 0;
  bool committed = false;
};

class ShardSave;

struct SaveHooks {
  // Each file that is going to appear, before anything is written; may throw.
  std::function<void(const std::filesystem::path&)> check_target;
  // Takes the place of the tensors' memory, when every file has its layout and its space; may throw.
  std::function<void(std::span<const std::unique_ptr<ShardSave>>)> snapshot;
  // No tensor memory is needed any more, and nothing has appeared yet; may throw.
  std::function<void()> all_read;
  // Leave an index of the target's name alone: it may be what is being read.
  bool keep_index = false;
};

Stats run_save(Writer::State& state, const SaveHooks& hooks);

// Finds tensors over the same memory and refuses them or stores them once, as the options say.
void resolve_shared(Writer::State& state);

struct WriterAccess {
  static Writer::State& state(Writer& writer);
};

}  // namespace penstock
