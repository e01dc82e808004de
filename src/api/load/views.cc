#include "api/load/views.h"

#include <algorithm>

#include "api/load/part.h"
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

// `beside`: bytes of memory that what is gathered takes.
std::shared_ptr<Arena> read_extent(const Reader::State& state, const TensorInfo& view, const LoadOptions& options,
                                   std::uint64_t beside) {
  auto arena = host_pool(options.pool)->allocate(view.extent());
  const auto address = reinterpret_cast<std::uintptr_t>(arena->data());
  LoadOptions quiet = options;
  quiet.progress = {};
  if (quiet.cache == CachePolicy::kAuto) quiet.cache = CachePolicy::kCopy;
  quiet.allocate = {};
  WantedBytes extent{view.file, {{view.offset, view.extent(), address}}, {arena->data(), arena, {arena->reused}}};
  extent.memory.taken = view.extent() + beside;
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
  const auto extent = read_extent(state, view, options, nbytes);
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

TensorInfo part_of_view(const TensorInfo& view, const Part& part) {
  TensorInfo result = view;
  result.shape = PartRuns(view, part).shape();  // and its checks
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (part[i].empty()) continue;
    if (part[i].size() > 1) {
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("tensor {}: several ranges of a dimension of a view that torch saved can't be read",
                              in_quotes(view.name)));
    }
    result.offset += static_cast<std::uint64_t>(part[i][0].begin * view.byte_strides[i]);
    result.byte_strides[i] *= part[i][0].step;
  }
  std::uint64_t count = 1;
  for (const std::int64_t size : result.shape) count *= static_cast<std::uint64_t>(size);
  result.nbytes = count * (dtype_bits(view.dtype) / 8);
  return result;
}

void add_views(const Reader::State& state, const Selection& selection, const LoadOptions& options, LoadResult& result) {
  if (selection.views.empty()) return;
  for (const TensorInfo* view : selection.views) result.tensors.push_back(load_view(state, *view, options));
  std::sort(result.tensors.begin(), result.tensors.end(),
            [&state](const Tensor& a, const Tensor& b) { return state.find(a.name) < state.find(b.name); });
  for (const TensorInfo* each : selection.views) result.stats.bytes += each->nbytes;
  result.stats.tensors += selection.views.size();
}

}  // namespace penstock
