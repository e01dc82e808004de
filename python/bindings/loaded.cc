// Tensors cross as rows of plain data that point into a few blocks of memory: 100,000 of them cost 100,000 tuples.
#include <algorithm>
#include <array>
#include <map>

#include "memory.h"

namespace penstock::python {
namespace {

using Address = std::uintptr_t;

// A block starts on a multiple of the widest element, so that every tensor's offset in it is one of its element size.
constexpr Address kBlockAlignment = 8;

struct Block {
  std::shared_ptr<void> owner;
  Address begin = ~Address{0};
  Address end = 0;
};

bool same_owner(const std::shared_ptr<void>& a, const std::shared_ptr<void>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

// The blocks behind tensors, by the owner of their memory.
class Blocks {
 public:
  std::size_t add(const Tensor& tensor) {
    const std::size_t index = find_or_add(tensor.memory);
    const auto address = reinterpret_cast<Address>(tensor.bytes.data());
    Block& block = blocks_[index];
    block.begin = std::min(block.begin, address & ~(kBlockAlignment - 1));
    block.end = std::max(block.end, address + tensor.bytes.size());
    return index;
  }

  const std::vector<Block>& all() const { return blocks_; }

 private:
  std::size_t find_or_add(const std::shared_ptr<void>& owner) {
    if (!blocks_.empty() && same_owner(blocks_[last_].owner, owner)) return last_;
    auto [entry, added] = index_.try_emplace(owner, blocks_.size());
    if (added) blocks_.push_back({owner});
    return last_ = entry->second;
  }

  std::vector<Block> blocks_;
  std::map<std::shared_ptr<void>, std::size_t, std::owner_less<>> index_;
  std::size_t last_ = 0;
};

nb::tuple tensor_row(const Tensor& tensor, std::int64_t block, std::uint64_t offset) {
  return nb::make_tuple(tensor.name, dtype_object(tensor.dtype), shape_tuple(tensor.shape), block, offset,
                        tensor.bytes.size());
}

}  // namespace

nb::str dtype_object(DType dtype) {
  const std::string_view name = dtype_name(dtype);
  PyObject* text = PyUnicode_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size()));
  if (text == nullptr) throw nb::python_error();
  PyUnicode_InternInPlace(&text);
  return nb::steal<nb::str>(text);
}

DType dtype_from(std::string_view name) {
  if (auto dtype = find_dtype(name)) return *dtype;
  throw Error(ErrorKind::kArgument, "unknown dtype \"" + std::string(name) + "\": there are " + list_dtypes());
}

std::optional<DType> dtype_from(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  return dtype_from(std::string_view(*name));
}

nb::tuple shape_tuple(const Shape& shape) {
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  if (!tuple.is_valid()) throw nb::python_error();
  for (std::size_t i = 0; i < shape.size(); ++i) {
    PyObject* size = PyLong_FromLongLong(shape[i]);
    if (size == nullptr) throw nb::python_error();
    PyTuple_SetItem(tuple.ptr(), static_cast<Py_ssize_t>(i), size);
  }
  return nb::borrow<nb::tuple>(tuple);
}

nb::tuple info_tuple(const TensorInfo& info) {
  return nb::make_tuple(info.name, dtype_object(info.dtype), shape_tuple(info.shape), info.file, info.offset,
                        info.nbytes);
}

Exported export_tensors(std::span<const Tensor> tensors, DlpackDevice device) {
  const CollectorPause pause;
  Blocks blocks;
  std::vector<std::int64_t> block_of(tensors.size(), -1);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].bytes.empty()) block_of[i] = static_cast<std::int64_t>(blocks.add(tensors[i]));
  }
  Exported exported;
  for (const Block& block : blocks.all()) {
    auto* const data = reinterpret_cast<std::byte*>(block.begin);
    exported.memories.append(Memory(block.owner, data, block.end - block.begin, device));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t block = block_of[i];
    const auto address = reinterpret_cast<Address>(tensors[i].bytes.data());
    const std::uint64_t offset = block < 0 ? 0 : address - blocks.all()[static_cast<std::size_t>(block)].begin;
    exported.rows.append(tensor_row(tensors[i], block, offset));
  }
  return exported;
}

}  // namespace penstock::python
