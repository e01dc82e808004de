// Reader::load_slice: a part of one tensor.
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "api/load/map.h"
#include "api/load/reading.h"
#include "api/load/views.h"
#include "base/error.h"
#include "base/tuning.h"

namespace penstock {
namespace {

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

// The bytes of a slice in its file: from the first to behind the last. Nothing where it starts or ends within one.
ByteRange extent_of(const TensorInfo& tensor, const std::vector<Slice>& slices) {
  std::int64_t first = 0;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    first = first * tensor.shape[i] + slices[i].begin;
    last = last * tensor.shape[i] + slices[i].end - 1;
  }
  const std::uint64_t begin = static_cast<std::uint64_t>(first) * dtype_bits(tensor.dtype);
  const std::uint64_t end = static_cast<std::uint64_t>(last + 1) * dtype_bits(tensor.dtype);
  if (begin % 8 != 0 || end % 8 != 0) return {};
  return {tensor.offset + begin / 8, tensor.offset + end / 8};
}

// A tensor that lies in the file as it is wanted, from a file that the page cache holds: a view of it. Nothing where
// the route of `facts` is another one.
std::optional<Tensor> map_slice(const File& file, const TensorInfo& tensor, Shape shape, ByteRange range,
                                const ReadRequest& request, const FileFacts& facts) {
  if (!is_aligned(range.begin, dtype_alignment(tensor.dtype))) return std::nullopt;
  const MapDecision decision = decide_mapping(request, {&facts, 1});
  // Completing a mapping is for whole files: who reads tensor by tensor would wait for each.
  if (decision.reason != MapReason::kMapAsked && decision.reason != MapReason::kAllCached) return std::nullopt;
  file.check_unchanged();
  std::shared_ptr<MappedRange> mapped;
  try {
    mapped = map_range(file, range);
  } catch (const Error& error) {
    // A process has so many mappings (vm.max_map_count), and who keeps many tensors may have used them up.
    if (error.kind() != ErrorKind::kMemory || decision.reason == MapReason::kMapAsked) throw;
    return std::nullopt;
  }
  return Tensor{tensor.name, tensor.dtype, std::move(shape), {mapped->at(range.begin), range.size()}, mapped};
}

// Reads a slice run by run.
class SliceReader {
 public:
  SliceReader(const Reader::State& state, const TensorInfo& tensor, DType dtype, LandingMemory memory,
              DeviceUse& devices, const LoadOptions& options)
      : state_(state),
        tensor_(tensor),
        dtype_(dtype),
        memory_(std::move(memory)),
        devices_(devices),
        options_(options) {
    address_ = reinterpret_cast<std::uintptr_t>(memory_.data);
    if (options_.cache == CachePolicy::kAuto) options_.cache = CachePolicy::kCopy;
    options_.verify = false;
  }

  void add(std::int64_t first, std::int64_t length) {
    const unsigned bits = dtype_bits(tensor_.dtype);
    const std::uint64_t begin = static_cast<std::uint64_t>(first) * bits;
    const std::uint64_t size = static_cast<std::uint64_t>(length) * bits;
    if (begin % 8 != 0 || size % 8 != 0) {
      throw Error(ErrorKind::kUnsupported, fmt::format("tensor {}: a slice of {} must start and end on whole bytes",
                                                       in_quotes(tensor_.name), dtype_name(tensor_.dtype)));
    }
    runs_.push_back({tensor_.offset + begin / 8, size / 8, address_, 0, tensor_.dtype, dtype_});
    address_ += static_cast<std::uint64_t>(length) * dtype_bits(dtype_) / 8;
    if (runs_.size() == tuning::kMostRuns) read();
  }

  void read() {
    if (runs_.empty()) return;
    WantedBytes wanted{tensor_.file, std::exchange(runs_, {}), memory_};
    read_all(state_, {std::move(wanted)}, options_, devices_);
  }

 private:
  const Reader::State& state_;
  const TensorInfo& tensor_;
  const DType dtype_;
  const LandingMemory memory_;
  DeviceUse& devices_;
  LoadOptions options_;
  std::uint64_t address_ = 0;
  std::vector<Segment> runs_;
};

}  // namespace

Tensor Reader::load_slice(std::string_view name, std::span<const Slice> slices, const LoadOptions& options) const {
  const TensorInfo& tensor = state_->tensors[state_->require(name)];
  const std::vector<Slice> ranges = complete_slices(tensor, slices);
  if (!tensor.byte_strides.empty()) return load_view(*state_, slice_view(tensor, ranges), options);
  const DType dtype = loaded_dtype(tensor, options.dtype);
  Shape shape;
  for (const Slice& range : ranges) shape.push_back(range.end - range.begin);
  const std::int64_t count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  const std::uint64_t nbytes = static_cast<std::uint64_t>(count) * dtype_bits(dtype) / 8;

  const ByteRange extent = count > 0 ? extent_of(tensor, ranges) : ByteRange{};
  const bool as_it_is = dtype == tensor.dtype && extent.size() > 0 && extent.size() == nbytes;
  if (as_it_is && !options.allocate) {
    const File& file = *state_->files[tensor.file];
    ReadRequest request = read_request(options);
    request.converts = request.verifies = false;
    const bool small = nbytes < tuning::kSmallestMappedSlice;
    const bool may_be_mapped = !small || options.cache == CachePolicy::kMap;
    const FileFacts facts = gather_facts(*state_, tensor.file, {&extent, 1}, request, may_be_mapped);
    if (may_be_mapped) {
      if (auto mapped = map_slice(file, tensor, shape, extent, request, facts)) return std::move(*mapped);
    }
    // Who reads small tensors one by one waits for system calls only: no plan, no crew.
    const bool cached = facts.resident == facts.wanted || options.cache == CachePolicy::kBuffered;
    if (small && cached && request.landing == Landing::kAuto) {
      auto arena = host_pool(options.pool)->allocate(nbytes);
      file.read(extent.begin, arena->data(), nbytes);
      file.check_unchanged();
      return {tensor.name, dtype, std::move(shape), {arena->data(), static_cast<std::size_t>(nbytes)}, arena};
    }
  }

  DeviceUse devices;
  LandingMemory memory = take_memory(nbytes, options, devices);
  memory.facts.may_have_huge_pages = false;  // a run is rarely as large
  memory.pages = nullptr;
  if (count > 0) {
    SliceReader reader(*state_, tensor, dtype, memory, devices, options);
    for_each_run(tensor.shape, ranges, [&](std::int64_t first, std::int64_t length) { reader.add(first, length); });
    reader.read();
  }
  return {tensor.name, dtype, std::move(shape), {memory.data, static_cast<std::size_t>(nbytes)}, memory.owner};
}

}  // namespace penstock
