#include "api/load/rows.h"

#include <algorithm>

#include "base/error.h"

namespace penstock {
namespace {

// The rows of a tensor as a tensor.
TensorInfo rows_of(const TensorInfo& tensor, const Slice& rows) {
  if (!tensor.byte_strides.empty()) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("tensor {}: rows of a view that torch saved can't be streamed", in_quotes(tensor.name)));
  }
  if (tensor.shape.empty()) throw_argument("tensor {} is a scalar and has no rows", in_quotes(tensor.name));
  const std::int64_t count = tensor.shape.front();
  if (rows.begin < 0 || rows.begin > rows.end || rows.end > count) {
    throw_argument("tensor {}: rows {}:{} are not within 0:{}", in_quotes(tensor.name), rows.begin, rows.end, count);
  }
  const std::uint64_t row_bits = count == 0 ? 0 : tensor.nbytes * 8 / static_cast<std::uint64_t>(count);
  const std::uint64_t begin = static_cast<std::uint64_t>(rows.begin) * row_bits;
  const std::uint64_t end = static_cast<std::uint64_t>(rows.end) * row_bits;
  if (begin % 8 != 0 || end % 8 != 0) {
    throw Error(ErrorKind::kUnsupported, fmt::format("tensor {}: rows of {} must start and end on whole bytes",
                                                     in_quotes(tensor.name), dtype_name(tensor.dtype)));
  }
  TensorInfo narrowed = tensor;
  narrowed.shape.front() = rows.end - rows.begin;
  narrowed.offset = tensor.offset + begin / 8;
  narrowed.nbytes = (end - begin) / 8;
  return narrowed;
}

}  // namespace

std::deque<TensorInfo> narrow(const Reader::State& state, const RowRanges& rows, Selection& selection) {
  std::deque<TensorInfo> narrowed;
  std::map<const TensorInfo*, const TensorInfo*> replacements;
  for (const auto& [name, range] : rows) {
    const TensorInfo& whole = state.tensors[state.require(name)];
    replacements[&whole] = &narrowed.emplace_back(rows_of(whole, range));
  }
  for (FileSelection& file : selection.files) {
    for (const TensorInfo*& tensor : file.tensors) {
      const auto found = replacements.find(tensor);
      if (found == replacements.end()) continue;
      selection.nbytes -= tensor->nbytes - found->second->nbytes;
      tensor = found->second;
    }
    // Tensors over the same bytes may have changed places.
    std::stable_sort(file.tensors.begin(), file.tensors.end(),
                     [](const TensorInfo* a, const TensorInfo* b) { return a->offset < b->offset; });
  }
  return narrowed;
}

}  // namespace penstock
