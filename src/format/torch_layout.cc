// From a tree and its storages' places to a Layout.
#include <algorithm>

#include "base/error.h"
#include "format/torch_tree.h"

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

}  // namespace

Layout make_layout(const Tree& tree, std::span<const std::uint64_t> storage_offsets, std::string format,
                   std::string_view path) {
  Layout layout;
  layout.format = std::move(format);
  for (auto& [name, number] : tree.named_tensors()) {
    const TensorReference& tensor = tree.tensors()[number];
    TensorInfo info;
    info.name = std::move(name);
    info.dtype = tensor.dtype;
    info.shape = tensor.shape;
    info.offset = storage_offsets[tensor.storage] + tensor.offset;
    info.nbytes = tensor_nbytes(tensor.dtype, tensor.shape, path, info.name);
    if (!is_contiguous(tensor)) {
      for (std::size_t i = 0; i < tensor.strides.size(); ++i) {
        // The stride of a single element is never walked, and was not checked.
        const std::int64_t stride = tensor.shape[i] == 1 ? 0 : tensor.strides[i];
        info.byte_strides.push_back(stride * static_cast<std::int64_t>(dtype_bits(tensor.dtype) / 8));
      }
    }
    layout.tensors.push_back(std::move(info));
  }
  std::vector<std::string_view> names(layout.tensors.size());
  std::transform(layout.tensors.begin(), layout.tensors.end(), names.begin(),
                 [](const TensorInfo& tensor) { return std::string_view(tensor.name); });
  if (const auto duplicate = find_duplicate(names)) {
    throw_format(path, "two tensors of the tree have the path {}", in_quotes(names[duplicate->first]));
  }
  sort_by_offset(layout.tensors);
  return layout;
}

Layout make_storage_layout(const Tree& tree, std::span<const std::uint64_t> storage_offsets, std::string format) {
  Layout layout;
  layout.format = std::move(format);
  for (std::size_t i = 0; i < tree.storages().size(); ++i) {
    const Storage& storage = tree.storages()[i];
    TensorInfo info;
    info.name = storage.key;
    info.dtype = DType::kU8;
    info.offset = storage_offsets[i];
    info.nbytes = storage.nbytes();
    info.shape = {static_cast<std::int64_t>(info.nbytes)};
    layout.tensors.push_back(std::move(info));
  }
  sort_by_offset(layout.tensors);
  return layout;
}

}  // namespace penstock::torch
