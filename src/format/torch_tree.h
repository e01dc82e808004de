// What a torch checkpoint's pickle says: storages, tensors over them, arrays, and the tree that they hang in.
//
// Shared by the zip and the legacy format, which differ only in where a storage's bytes are. What is more than data (an
// object of somebody's class, a function) is opaque: it has a name and parts, and is never made. Tensors in it count
// like any other.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/layout.h"
#include "format/numpy_array.h"
#include "format/pickle.h"

namespace penstock::torch {

// What a refusal says of what can be done instead.
inline constexpr std::string_view kKeepHint = "opaque=\"keep\" loads the rest";

struct Storage {
  std::string key;       // "0", "1" ...
  std::string location;  // "cpu", "cuda:0" ...
  DType dtype = DType::kU8;
  std::uint64_t count = 0;  // elements

  std::uint64_t nbytes() const noexcept { return count * (dtype_bits(dtype) / 8); }
};

// What a persistent id stands for: a storage, or a part of one, as elements of a type. One storage may be used as
// elements of several.
struct StorageUse {
  std::uint32_t storage = 0;
  DType dtype = DType::kU8;
  std::string_view torch_dtype;  // torch's name for it, of the quantized types too
  bool quantized = false;
  std::uint64_t offset = 0;  // bytes, from the start of the storage
  std::uint64_t count = 0;   // elements

  std::uint64_t nbytes() const noexcept { return count * (dtype_bits(dtype) / 8); }
};

struct TensorReference {
  std::uint32_t storage = 0;
  DType dtype = DType::kU8;
  std::uint64_t offset = 0;  // bytes, from the start of the storage
  Shape shape;
  Shape strides;  // elements
  bool requires_grad = false;
  bool is_parameter = false;
  bool conjugated = false;                      // its bytes are those of the conjugate
  bool negated = false;                         // its bytes are those of its negative
  pickle::NodeId attributes = pickle::kNoNode;  // what Python would set on it
};

// How far a tree is walked for the paths of its tensors. A graph that shares or contains its own nodes is longer to
// walk than to store, so what a walk may take goes by what is stored.
struct WalkLimits {
  explicit WalkLimits(const pickle::Graph& graph);

  std::size_t steps;       // containers and tensors
  std::size_t names;       // paths of tensors
  std::size_t name_bytes;  // in all of them

  static constexpr std::size_t kFreeSteps = 100'000;
  static constexpr std::size_t kFreeNames = 20'000;
  static constexpr std::size_t kPerValue = 2;
  static constexpr std::size_t kFreeNameBytes = 4 << 20;
  static constexpr std::size_t kNameBytesPerByte = 8;
};

class Tree {
 public:
  // Takes the tensors out of a pickle's graph and checks each against its storage. Throws Error(kFormat or
  // kUnsupportedFormat) that names `path` and the byte. The text that the graph was parsed from must outlive the tree.
  Tree(pickle::Graph graph, std::string_view path);

  const pickle::Graph& graph() const noexcept { return graph_; }
  std::span<const Storage> storages() const noexcept { return storages_; }
  std::span<const TensorReference> tensors() const noexcept { return tensors_; }
  std::span<const numpy::Array> arrays() const noexcept { return arrays_; }

  // The number of the tensor that a node stands for; -1 for one that stands for none. The same for arrays.
  std::int32_t tensor_at(pickle::NodeId id) const { return tensor_of_node_[id]; }
  std::int32_t array_at(pickle::NodeId id) const { return array_of_node_[id]; }
  // Null for a node that is no storage.
  const StorageUse* storage_at(pickle::NodeId id) const {
    return use_of_node_[id] < 0 ? nullptr : &uses_[static_cast<std::size_t>(use_of_node_[id])];
  }

  // True for what is no data: a foreign global, or what would be made by calling one (or something worse).
  bool is_opaque(pickle::NodeId id) const;
  // What it is called: "argparse.Namespace".
  std::string opaque_name(pickle::NodeId id) const;

  struct Listing {
    // Every tensor with its path, in the order of the tree: "layer.0.weight", or "model/layer.0.weight" where dicts lie
    // in dicts; lists count from 0. A checkpoint that is one tensor calls it "tensor". Numbers from tensors().size() on
    // are those of arrays.
    std::vector<std::pair<std::string, std::uint32_t>> tensors;
    std::vector<OpaqueValue> opaque;  // the outermost of each
  };
  Listing list() const;

 private:
  friend class TreeBuilder;

  pickle::Graph graph_;
  std::vector<Storage> storages_;
  std::vector<StorageUse> uses_;
  std::vector<TensorReference> tensors_;
  std::vector<numpy::Array> arrays_;
  std::vector<std::int32_t> tensor_of_node_;
  std::vector<std::int32_t> array_of_node_;
  std::vector<std::int32_t> use_of_node_;
  std::string path_;
  WalkLimits limits_;
};

}  // namespace penstock::torch
