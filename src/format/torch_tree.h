// What a torch checkpoint's pickle says: storages, tensors over them, and the tree that they hang in.
//
// Shared by the zip and the legacy format, which differ only in where a storage's bytes are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/layout.h"
#include "format/pickle.h"

namespace penstock::torch {

struct Storage {
  std::string key;       // "0", "1" ...
  std::string location;  // "cpu", "cuda:0" ...
  DType dtype = DType::kU8;
  std::uint64_t count = 0;  // elements

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
};

// Which globals a checkpoint may name.
bool allows_global(std::string_view global);

// How far a tree is walked for the paths of its tensors. A graph that shares or contains its own nodes is longer to
// walk than to store.
struct WalkLimits {
  std::size_t steps = 4'000'000;  // containers and tensors
  std::size_t names = 1'000'000;  // where each tensor has few
};

class Tree {
 public:
  // Takes the tensors out of a pickle's graph and checks each against its storage. Throws Error(kFormat or
  // kUnsupportedFormat) that names `path` and the byte. The text that the graph was parsed from must outlive the tree.
  Tree(pickle::Graph graph, std::string_view path, WalkLimits limits = {});

  const pickle::Graph& graph() const noexcept { return graph_; }
  std::span<const Storage> storages() const noexcept { return storages_; }
  std::span<const TensorReference> tensors() const noexcept { return tensors_; }

  // The number of the tensor that a node stands for; -1 for one that stands for none.
  std::int32_t tensor_at(pickle::NodeId id) const { return tensor_of_node_[id]; }
  std::int32_t storage_at(pickle::NodeId id) const { return storage_of_node_[id]; }

  // Every tensor with its path, in the order of the tree: "layer.0.weight", or "model/layer.0.weight" where dicts lie
  // in dicts; lists count from 0. A checkpoint that is one tensor calls it "tensor".
  std::vector<std::pair<std::string, std::uint32_t>> named_tensors() const;

 private:
  friend class TreeBuilder;

  pickle::Graph graph_;
  std::vector<Storage> storages_;
  std::vector<TensorReference> tensors_;
  std::vector<std::int32_t> tensor_of_node_;
  std::vector<std::int32_t> storage_of_node_;
  std::string path_;
  WalkLimits limits_;
};

// Joins a tree with where its storages lie: file offsets, by the number of the storage.
Layout make_layout(const Tree& tree, std::span<const std::uint64_t> storage_offsets, std::string format,
                   std::string_view path);

// The storages alone, as one-dimensional tensors of bytes named by their keys.
Layout make_storage_layout(const Tree& tree, std::span<const std::uint64_t> storage_offsets, std::string format);

}  // namespace penstock::torch
