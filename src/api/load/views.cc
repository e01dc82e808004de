#include "api/load/views.h"

#include <algorithm>

#include "api/load/reading.h"
#include "base/cast.h"
#include "base/error.h"
#include "transfer/strided.h"

namespace penstock {
namespace {

// An expanded tensor repeats elements: a few bytes of a file can claim any amount of memory.
void refuse_bomb(const Reader::State& state, const TensorInfo& view) {
  const File& file = *state.files[view.file];
  if (view.nbytes <= view.extent() || view.nbytes <= file.size()) return;
  throw_format(file.path(), "tensor {} repeats its {} bytes to {}, more than the file has", in_quotes(view.name),
               view.extent(), view.nbytes);
}

std::shared_ptr<Arena> read_extent(const Reader::State& state, const TensorInfo& view, const LoadOptions& options) {
  auto arena = host_pool(options.pool)->allocate(view.extent());
  const auto address = reinterpret_cast<std::uintptr_t>(arena->data());
  LoadOptions quiet = options;
  quiet.progress = {};
  if (quiet.cache == CachePolicy::kAuto) quiet.cache = CachePolicy::kCopy;
  quiet.allocate = {};
  WantedBytes extent{view.file, {{view.offset, view.extent(), address}}, {arena->data(), arena, {arena->reused}}};
  DeviceUse none;
  read_all(state, {std::move(extent)}, quiet, none);
  return arena;
}

}  // namespace

namespace {

Tensor gather_view(const Reader::State& state, const TensorInfo& view, const LoadOptions& options) {
  refuse_bomb(state, view);
  const DType dtype = loaded_dtype(view, options.dtype);
  const std::uint64_t width = dtype_bits(view.dtype) / 8;
  const std::uint64_t count = view.nbytes / width;
  const std::uint64_t nbytes = count * (dtype_bits(dtype) / 8);
  const auto arena = host_pool(options.pool)->allocate(nbytes);
  Tensor tensor{view.name, dtype, view.shape, {arena->data(), static_cast<std::size_t>(nbytes)}, arena};
  if (count == 0) return tensor;
  const auto extent = read_extent(state, view, options);
  const StridedReader reader(extent->data(), view.shape, view.byte_strides, width);
  if (dtype == view.dtype) {
    reader.read(0, tensor.bytes);
    return tensor;
  }
  std::vector<std::byte> gathered(static_cast<std::size_t>(view.nbytes));
  reader.read(0, gathered);
  cast_elements(view.dtype, gathered.data(), dtype, tensor.bytes.data(), count);
  return tensor;
}

}  // namespace

Tensor load_view(const Reader::State& state, const TensorInfo& view, const LoadOptions& options) {
  return moved_to_given(gather_view(state, view, options), options);
}

TensorInfo slice_view(const TensorInfo& view, std::span<const Slice> slices) {
  TensorInfo part = view;
  std::uint64_t count = 1;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    part.offset += static_cast<std::uint64_t>(slices[i].begin * view.byte_strides[i]);
    part.shape[i] = slices[i].end - slices[i].begin;
    count *= static_cast<std::uint64_t>(part.shape[i]);
  }
  part.nbytes = count * (dtype_bits(view.dtype) / 8);
  return part;
}

void add_views(const Reader::State& state, const Selection& selection, const LoadOptions& options, LoadResult& result) {
  if (selection.views.empty()) return;
  std::vector<Tensor> merged;
  auto loaded = result.tensors.begin();
  auto view = selection.views.begin();
  for (const FileSelection& file : selection.files) {
    for (const TensorInfo* tensor : file.tensors) {
      for (; view != selection.views.end() && *view < tensor; ++view)
        merged.push_back(load_view(state, **view, options));
      merged.push_back(std::move(*loaded++));
    }
  }
  for (; view != selection.views.end(); ++view) merged.push_back(load_view(state, **view, options));
  for (const TensorInfo* each : selection.views) result.stats.bytes += each->nbytes;
  result.stats.tensors += selection.views.size();
  result.tensors = std::move(merged);
}

}  // namespace penstock
