// What a file says of a tensor (TensorInfo), and a tensor in memory (Tensor).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/dtype.h"
#include "penstock/export.h"

namespace PENSTOCK_EXPORT penstock {

using Shape = std::vector<std::int64_t>;

// Free-form text that travels with a file ("format": "pt"), string to string.
using Metadata = std::map<std::string, std::string>;

// A value of a torch checkpoint that is more than data: an object of somebody's class, a function. It is named and
// never made; tensors in it are tensors like any other.
struct OpaqueValue {
  std::string path;  // in the tree: "hyper_parameters"; empty for the whole of it
  std::string name;  // of its class: "argparse.Namespace"
};

// Where a tensor lies in a set of files. Plain data.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kU8;
  Shape shape;
  std::uint32_t file = 0;    // index into Reader::files()
  std::uint64_t offset = 0;  // of the first byte, from the start of that file
  std::uint64_t nbytes = 0;
  // Of a tensor whose elements are not next to each other in the file (a view that torch saved): one per dimension,
  // never negative. Empty for all others. Such a tensor is loaded row-major like any other; `nbytes` is what it takes
  // then.
  std::vector<std::int64_t> byte_strides;

  // Bytes from the first element to the end of the last one, in the file.
  std::uint64_t extent() const noexcept;
};

// A tensor in host memory: contiguous, row-major, writable, aligned to its element size. It owns a share of the memory
// behind it (`memory`), which lives as long as any tensor that points into it, whatever happens to the Reader.
struct Tensor {
  std::string name;
  DType dtype = DType::kU8;
  Shape shape;
  std::span<std::byte> bytes;
  std::shared_ptr<void> memory;

  template <typename T>
  T* data() const noexcept {
    return reinterpret_cast<T*>(bytes.data());
  }
};

}  // namespace penstock
