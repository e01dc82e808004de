// Reader: opens a checkpoint, tells what is in it, and loads it.
//
// A checkpoint is one file, several files, a directory of shards, or a `*.index.json`. Opening reads and checks the
// headers and no data. The format is detected from the bytes, never from the suffix. A Reader is immutable: it may be
// used from several threads at once, and the tensors it gave out stay valid after it is gone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/export.h"
#include "penstock/options.h"
#include "penstock/tensor.h"

namespace PENSTOCK_EXPORT penstock {

struct FileInfo {
  std::filesystem::path path;
  std::uint64_t size = 0;
  std::string format;  // "safetensors", "flashpack", "torch", "torch-legacy"
  Metadata metadata;
  std::vector<OpaqueValue> opaque;  // what of a torch checkpoint is no data, and was left out
  // Not a file of its own, but what the one before it holds compressed or inside its pickle: it is unpacked into memory
  // when it is first wanted, and stays there as long as the Reader.
  bool unpacked = false;
};

struct LoadResult {
  std::vector<Tensor> tensors;  // in the order of Reader::tensors()
  Stats stats;
};

// Memory of the caller's that a tensor is to be read into.
struct Target {
  std::string name;
  std::span<std::byte> bytes;  // exactly as long as the tensor, in its target dtype
  std::optional<DType> dtype;  // convert to this; nothing: as stored
  Part part;                   // only this of the tensor: the bytes are as long as it is
  // Of memory whose elements are not next to each other: one per dimension, positive. `bytes` is then what lies
  // between its first element and the end of its last. None: row-major.
  std::vector<std::int64_t> byte_strides;
};

// Yields tensors in the order their bytes lie in the files, as soon as they have landed, while later ones are being
// read. At most LoadOptions::max_buffer bytes (but always one tensor) are read ahead; a tensor's memory is free again
// as soon as it and its neighbours of the same small batch are dropped. Move-only; one consumer at a time. Destroying
// it stops the reads that are under way.
class TensorStream {
 public:
  struct State;  // the library's own

  TensorStream(TensorStream&&) noexcept;
  TensorStream& operator=(TensorStream&&) noexcept;
  ~TensorStream();

  // Begins to read ahead, which the first next() does otherwise. What goes wrong is told by next().
  void start() noexcept;

  // The next tensor; nothing at the end. Throws Error when its bytes could not be read, and again at every later call.
  std::optional<Tensor> next();

  // The same, but gives up waiting after `seconds`, returning nothing with `*timed_out` true.
  std::optional<Tensor> next_for(double seconds, bool* timed_out);

  // Complete after next() returned nothing.
  const Stats& stats() const;

 private:
  friend class Reader;
  explicit TensorStream(std::unique_ptr<State> state);
  std::shared_ptr<State> state_;
};

class Reader {
 public:
  struct State;  // the library's own

  // `path`: a file, a directory of shards, or an index.json.
  explicit Reader(const std::filesystem::path& path);
  explicit Reader(std::span<const std::filesystem::path> paths);
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;
  ~Reader();

  // Every tensor, by file and then by offset.
  std::span<const TensorInfo> tensors() const noexcept;

  // Null when there is no such tensor.
  const TensorInfo* find(std::string_view name) const noexcept;

  std::span<const FileInfo> files() const noexcept;

  // Of all files together; where two disagree, the first one's.
  const Metadata& metadata() const noexcept;

  // Loads what LoadOptions::select wants into memory from the pool (or maps it).
  LoadResult load(const LoadOptions& options = {}) const;

  // Reads into memory of the caller's. Nothing is written before all names and sizes were checked.
  Stats load_into(std::span<const Target> targets, const LoadOptions& options = {}) const;

  TensorStream stream(const LoadOptions& options = {}) const;

  // Reads one tensor's part: `slices` has one entry per leading dimension (missing ones are whole). Only the bytes of
  // the slice are read, near ones together. Its shape is the slices' lengths.
  Tensor load_slice(std::string_view name, std::span<const Slice> slices, const LoadOptions& options = {}) const;

  // How many of the tensors' bytes the page cache holds now.
  std::uint64_t resident_bytes() const;

 private:
  friend struct ReaderAccess;
  explicit Reader(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

}  // namespace penstock
