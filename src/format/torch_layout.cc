// From a tree and its storages' places to a Layout.
#include <algorithm>
#include <memory>

#include "base/bytes.h"
#include "base/error.h"
#include "format/torch_file.h"

namespace penstock::torch {
namespace {

bool is_contiguous(const TensorReference& tensor) {
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return true;
  std::int64_t expected = 1;
  for (std::size_t i = tensor.shape.size(); i > 0; --i) {
    if (tensor.shape[i - 1] != 1 && tensor.strides[i - 1] != expected) return false;
    expected *= tensor.shape[i - 1];
  }
  return true;
}

TensorInfo describe(const TensorReference& tensor, std::uint64_t storage_offset) {
  TensorInfo info;
  info.dtype = tensor.dtype;
  info.shape = tensor.shape;
  info.offset = storage_offset + tensor.offset;
  if (is_contiguous(tensor)) return info;
  for (std::size_t i = 0; i < tensor.strides.size(); ++i) {
    // The stride of a single element is never walked, and was not checked.
    const std::int64_t stride = tensor.shape[i] == 1 ? 0 : tensor.strides[i];
    info.byte_strides.push_back(stride * static_cast<std::int64_t>(dtype_bits(tensor.dtype) / 8));
  }
  return info;
}

TensorInfo describe(const numpy::Array& array, std::uint64_t offset) {
  TensorReference tensor;
  tensor.dtype = array.dtype;
  tensor.shape = array.shape;
  tensor.strides.resize(array.shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = 0; i < array.shape.size(); ++i) {
    const std::size_t dimension = array.column_major ? i : array.shape.size() - 1 - i;
    tensor.strides[dimension] = stride;
    stride *= std::max<std::int64_t>(array.shape[dimension], 1);
  }
  return describe(tensor, offset);
}

bool is_packed(const Checkpoint& checkpoint, std::uint32_t storage) {
  return !checkpoint.storage_is_packed.empty() && checkpoint.storage_is_packed[storage];
}

// Arrays are few and small: their bytes are kept.
std::uint64_t add_array(const Tree& tree, const numpy::Array& array, Layout& layout) {
  auto bytes = std::make_shared<const std::vector<std::byte>>(numpy::take_bytes(tree.graph(), array));
  const std::uint64_t offset = next_packed_offset(layout.packed);
  layout.packed.push_back({"a NumPy array", offset, bytes->size(), 0,
                           [bytes](const ByteSource&, const PackedBytes::Take& take) { take(*bytes); }});
  return offset;
}

void refuse_same_paths(const Layout& layout, std::string_view path) {
  std::vector<std::string_view> names;
  for (const TensorInfo& tensor : layout.tensors) names.push_back(tensor.name);
  for (const TensorInfo& tensor : layout.packed_tensors) names.push_back(tensor.name);
  if (const auto duplicate = find_duplicate(names)) {
    throw_format(path, "two tensors of the tree have the path {}", in_quotes(names[duplicate->first]));
  }
}

}  // namespace

std::uint64_t next_packed_offset(const std::vector<PackedBytes>& packed) {
  constexpr std::uint64_t kAlignment = 64;
  // An empty part has a place of its own too.
  return packed.empty() ? 0
                        : align_up(packed.back().offset + std::max<std::uint64_t>(packed.back().nbytes, 1), kAlignment);
}

Layout make_layout(const Checkpoint& checkpoint, std::string_view path) {
  const Tree& tree = *checkpoint.tree;
  Layout layout;
  layout.format = checkpoint.format;
  layout.packed = checkpoint.packed;
  Tree::Listing listing = tree.list();
  layout.opaque = std::move(listing.opaque);
  std::vector<std::optional<std::uint64_t>> array_offsets(tree.arrays().size());
  for (auto& [name, number] : listing.tensors) {
    const bool is_array = number >= tree.tensors().size();
    TensorInfo info;
    if (is_array) {
      const std::size_t array = number - tree.tensors().size();
      if (!array_offsets[array]) array_offsets[array] = add_array(tree, tree.arrays()[array], layout);
      info = describe(tree.arrays()[array], *array_offsets[array]);
    } else {
      const TensorReference& tensor = tree.tensors()[number];
      info = describe(tensor, checkpoint.storage_offsets[tensor.storage]);
    }
    info.name = std::move(name);
    info.nbytes = tensor_nbytes(info.dtype, info.shape, path, info.name);
    const bool packed = is_array || is_packed(checkpoint, tree.tensors()[number].storage);
    (packed ? layout.packed_tensors : layout.tensors).push_back(std::move(info));
  }
  refuse_same_paths(layout, path);
  sort_by_offset(layout.tensors);
  sort_by_offset(layout.packed_tensors);
  return layout;
}

Layout make_storage_layout(const Checkpoint& checkpoint) {
  Layout layout;
  layout.format = checkpoint.format;
  layout.packed = checkpoint.packed;
  for (std::uint32_t i = 0; i < checkpoint.tree->storages().size(); ++i) {
    const Storage& storage = checkpoint.tree->storages()[i];
    TensorInfo info;
    info.name = storage.key;
    info.dtype = DType::kU8;
    info.offset = checkpoint.storage_offsets[i];
    info.nbytes = storage.nbytes();
    info.shape = {static_cast<std::int64_t>(info.nbytes)};
    (is_packed(checkpoint, i) ? layout.packed_tensors : layout.tensors).push_back(std::move(info));
  }
  sort_by_offset(layout.tensors);
  sort_by_offset(layout.packed_tensors);
  return layout;
}

void refuse_opaque(const Checkpoint& checkpoint, std::string_view path) {
  const pickle::Graph& graph = checkpoint.tree->graph();
  if (checkpoint.is_program) {
    throw_unsupported(path, "a TorchScript archive, which is a program and not data; {}", kKeepHint);
  }
  if (graph.first_foreign == pickle::kNoNode) return;
  throw_unsupported(path, "{}: {} ({})", graph.place(graph.first_foreign),
                    pickle::foreign_text(graph.text(graph.first_foreign)), kKeepHint);
}

}  // namespace penstock::torch
