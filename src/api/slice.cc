// Reader::load_slice: a part of one tensor.
#include <functional>
#include <numeric>

#include "api/views.h"
#include "base/error.h"

namespace penstock {
namespace {

// Runs of a slice that are planned at a time: bounds the planner's memory for slices of many short runs.
constexpr std::size_t kMostRuns = 100'000;

// Below this a cached run is read at once, without a plan: who reads tensors one by one waits for system calls only.
constexpr std::uint64_t kQuickRead = 1 * kMiB;

// One range per dimension, missing ones whole, checked.
std::vector<Slice> complete_slices(const TensorInfo& tensor, std::span<const Slice> slices) {
  if (slices.size() > tensor.shape.size()) {
    throw_argument("tensor {} has {} dimensions, {} slices were given", in_quotes(tensor.name), tensor.shape.size(),
                   slices.size());
  }
  std::vector<Slice> complete(slices.begin(), slices.end());
  for (std::size_t i = slices.size(); i < tensor.shape.size(); ++i) complete.push_back({0, tensor.shape[i]});
  for (std::size_t i = 0; i < complete.size(); ++i) {
    if (complete[i].begin >= 0 && complete[i].begin <= complete[i].end && complete[i].end <= tensor.shape[i]) continue;
    throw_argument("tensor {}: slice {}:{} of dimension {} is not within 0:{}", in_quotes(tensor.name),
                   complete[i].begin, complete[i].end, i, tensor.shape[i]);
  }
  return complete;
}

// Calls `use(first element, element count)` for each contiguous run of a slice, in order.
template <typename Use>
void for_each_run(const Shape& shape, const std::vector<Slice>& slices, const Use& use) {
  // Dimensions from `split` on are whole; the one before them, sliced, makes a run contiguous.
  std::size_t split = shape.size();
  std::int64_t inner = 1;
  while (split > 0 && slices[split - 1].begin == 0 && slices[split - 1].end == shape[split - 1])
    inner *= shape[--split];
  if (split == 0) return use(0, inner);
  const std::size_t outer = split - 1;
  const std::int64_t run = (slices[outer].end - slices[outer].begin) * inner;
  std::vector<std::int64_t> index;
  for (std::size_t i = 0; i < outer; ++i) index.push_back(slices[i].begin);
  while (true) {
    std::int64_t first = 0;
    for (std::size_t i = 0; i < outer; ++i) first = (first + index[i]) * shape[i + 1];
    use(first * inner + slices[outer].begin * inner, run);
    std::size_t i = outer;
    while (i > 0 && ++index[i - 1] == slices[i - 1].end) {
      index[i - 1] = slices[i - 1].begin;
      --i;
    }
    if (i == 0) return;
  }
}

// Reads a single short run that the page cache holds. False, with nothing done, for anything else.
bool read_from_cache(const FileWants& wants, const LoadOptions& options) {
  if (wants.segments.size() != 1) return false;
  const Segment& run = wants.segments.front();
  if (run.converts() || run.nbytes > kQuickRead) return false;
  if (options.cache != CachePolicy::kAuto && options.cache != CachePolicy::kBuffered) return false;
  if (wants.file->resident_bytes({run.offset, run.end()}) != run.nbytes) return false;
  wants.file->read(run.offset, reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(run.address)), run.nbytes);
  wants.file->check_unchanged();
  return true;
}

}  // namespace

Tensor Reader::load_slice(std::string_view name, std::span<const Slice> slices, const LoadOptions& options) const {
  const TensorInfo& tensor = state_->tensors[state_->require(name)];
  const std::vector<Slice> ranges = complete_slices(tensor, slices);
  if (!tensor.byte_strides.empty()) return load_view(*state_, slice_view(tensor, ranges), options);
  const DType dtype = loaded_dtype(tensor, options.dtype);
  const unsigned from_bits = dtype_bits(tensor.dtype);
  Shape shape;
  for (const Slice& range : ranges) shape.push_back(range.end - range.begin);
  const std::int64_t count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  const std::uint64_t nbytes = static_cast<std::uint64_t>(count) * dtype_bits(dtype) / 8;

  const auto pool = host_pool(options.pool);
  const auto arena = pool->allocate(nbytes);
  auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(arena->data()));
  std::vector<FileWants> wants{{state_->files[tensor.file], {}}};
  std::uint64_t wanted = 0;
  const auto read_now = [&] {
    if (wanted > 0 && !read_from_cache(wants.front(), options)) {
      read_wants(*state_, wants, wanted, arena->reused, options, /*verify=*/false);
    }
    wants.front().segments.clear();
    wanted = 0;
  };
  const auto owner = static_cast<std::uint32_t>(&tensor - state_->tensors.data());
  if (count > 0) {
    for_each_run(tensor.shape, ranges, [&](std::int64_t first, std::int64_t length) {
      const std::uint64_t begin = static_cast<std::uint64_t>(first) * from_bits;
      const std::uint64_t size = static_cast<std::uint64_t>(length) * from_bits;
      if (begin % 8 != 0 || size % 8 != 0) {
        throw Error(ErrorKind::kUnsupported, fmt::format("tensor {}: a slice of {} must start and end on whole bytes",
                                                         in_quotes(name), dtype_name(tensor.dtype)));
      }
      wants.front().segments.push_back({tensor.offset + begin / 8, size / 8, address, owner, tensor.dtype, dtype});
      address += static_cast<std::uint64_t>(length) * dtype_bits(dtype) / 8;
      wanted += size / 8;
      if (wants.front().segments.size() == kMostRuns) read_now();
    });
    read_now();
  }
  return {tensor.name, dtype, std::move(shape), {arena->data(), static_cast<std::size_t>(nbytes)}, arena};
}

}  // namespace penstock
