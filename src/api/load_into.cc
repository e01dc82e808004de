// Reader::load_into and Reader::load_slice: reads whose destination is given, tensor by tensor.
#include <algorithm>
#include <numeric>

#include "api/loading.h"
#include "base/error.h"
#include "io/residency.h"

namespace penstock {
namespace {

// Runs of a slice that are planned at a time: bounds the planner's memory for slices of many short runs.
constexpr std::size_t kMostRuns = 100'000;

struct Destination {
  const TensorInfo* tensor = nullptr;
  std::uint64_t address = 0;
  DType dtype = DType::kU8;
};

std::uint64_t converted_nbytes(const TensorInfo& tensor, DType dtype) {
  if (dtype == tensor.dtype) return tensor.nbytes;
  return tensor.nbytes / (dtype_bits(tensor.dtype) / 8) * (dtype_bits(dtype) / 8);
}

Destination resolve(const Reader::State& state, const Target& target) {
  const TensorInfo& tensor = state.tensors[state.require(target.name)];
  const DType dtype = target.dtype.value_or(tensor.dtype);
  if (dtype != tensor.dtype && !dtype_can_cast(tensor.dtype, dtype)) {
    throw Error(ErrorKind::kUnsupported, fmt::format("{}: tensor {}: {} can't be converted to {}",
                                                     state.files[tensor.file]->path(), in_quotes(tensor.name),
                                                     dtype_name(tensor.dtype), dtype_name(dtype)));
  }
  const std::uint64_t expected = converted_nbytes(tensor, dtype);
  if (target.bytes.size() != expected) {
    throw Error(ErrorKind::kArgument, fmt::format("{}: tensor {} has {} bytes as {}, its target has {}",
                                                  state.files[tensor.file]->path(), in_quotes(tensor.name), expected,
                                                  dtype_name(dtype), target.bytes.size()));
  }
  return {&tensor, reinterpret_cast<std::uintptr_t>(target.bytes.data()), dtype};
}

void refuse_repeats(const std::vector<Destination>& sorted) {
  const auto same = [](const Destination& a, const Destination& b) { return a.tensor == b.tensor; };
  const auto repeat = std::adjacent_find(sorted.begin(), sorted.end(), same);
  if (repeat != sorted.end()) throw_argument("tensor {} has two targets", in_quotes(repeat->tensor->name));
}

std::vector<FileWants> wants_by_file(const Reader::State& state, const std::vector<Destination>& sorted) {
  std::vector<FileWants> wants;
  for (const Destination& destination : sorted) {
    const TensorInfo& tensor = *destination.tensor;
    if (wants.empty() || wants.back().file != state.files[tensor.file]) wants.push_back({state.files[tensor.file], {}});
    const auto owner = static_cast<std::uint32_t>(&tensor - state.tensors.data());
    wants.back().segments.push_back({tensor.offset, tensor.nbytes, destination.address, owner, tensor.dtype, destination.dtype});
  }
  return wants;
}

// Runs the reads of `wants` and says how in the statistics.
Stats read_wants(const Reader::State& state, const std::vector<FileWants>& wants, std::uint64_t nbytes, bool hot,
                 const LoadOptions& options, bool verify) {
  const Stopwatch watch;
  Stats stats;
  const Settings settings = decide_settings(options.io, nbytes);
  const LandingChoice landing = wants.empty() ? LandingChoice{} : choose_landing(options.landing, hot, *wants.front().file, nbytes);
  const CachePolicy cache = options.cache == CachePolicy::kMap ? CachePolicy::kBuffered : options.cache;
  auto batch = std::make_shared<ReadBatch>();
  batch->populate = !hot;
  ChecksumCollector collector;
  std::vector<bool> loaded(state.tensors.size());
  if (verify) {
    batch->observe = [&collector](const Piece& piece, const std::byte* bytes) {
      collector.add(piece.owner, piece.offset, bytes, piece.nbytes);
    };
  }
  for (const FileWants& file : wants) {
    for (const Segment& segment : file.segments) loaded[segment.owner] = true;
    batch->tasks.push_back(plan_file(file, {cache, landing.in_place, verify}, settings.block_size));
  }
  Crew crew(settings, host_pool(options.pool));
  start_reading(crew, batch);
  wait_with_progress(*batch, options.progress, nbytes, watch);
  check_unchanged(batch->tasks);
  crew.stop();
  describe(crew, settings, stats);
  if (verify) check_checksums(state, collector, state.expected_checksums(), loaded);
  stats.bytes = nbytes;
  stats.landing = stats.bytes_direct == 0 ? "copied" : landing.in_place ? "in place" : "staged";
  stats.reason = stats.path == "buffered" ? "the bytes came from the page cache" : landing.reason;
  stats.seconds = watch.seconds();
  return stats;
}

// One range per dimension, missing ones whole, checked.
std::vector<Slice> complete_slices(const TensorInfo& tensor, std::span<const Slice> slices) {
  if (slices.size() > tensor.shape.size()) {
    throw_argument("tensor {} has {} dimensions, {} slices were given", in_quotes(tensor.name), tensor.shape.size(), slices.size());
  }
  std::vector<Slice> complete(slices.begin(), slices.end());
  for (std::size_t i = slices.size(); i < tensor.shape.size(); ++i) complete.push_back({0, tensor.shape[i]});
  for (std::size_t i = 0; i < complete.size(); ++i) {
    if (complete[i].begin >= 0 && complete[i].begin <= complete[i].end && complete[i].end <= tensor.shape[i]) continue;
    throw_argument("tensor {}: slice {}:{} of dimension {} is not within 0:{}", in_quotes(tensor.name), complete[i].begin,
                   complete[i].end, i, tensor.shape[i]);
  }
  return complete;
}

// Calls `use(first element, element count)` for each contiguous run of a slice, in order.
template <typename Use>
void for_each_run(const Shape& shape, const std::vector<Slice>& slices, const Use& use) {
  // Dimensions from `split` on are whole; the one before them, sliced, makes a run contiguous.
  std::size_t split = shape.size();
  std::int64_t inner = 1;
  while (split > 0 && slices[split - 1].begin == 0 && slices[split - 1].end == shape[split - 1]) inner *= shape[--split];
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

}  // namespace

Stats Reader::load_into(std::span<const Target> targets, const LoadOptions& options) const {
  std::vector<Destination> destinations;
  bool hot = true;
  std::uint64_t nbytes = 0;
  for (const Target& target : targets) {
    destinations.push_back(resolve(*state_, target));
    nbytes += destinations.back().tensor->nbytes;
  }
  // Asking the kernel page by page is only worth it for memory that matters.
  for (const Target& target : targets) {
    hot = hot && (target.bytes.size() < kMiB || memory_is_resident(target.bytes.data(), target.bytes.size()));
  }
  std::sort(destinations.begin(), destinations.end(), [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  refuse_repeats(destinations);
  Stats stats = read_wants(*state_, wants_by_file(*state_, destinations), nbytes, hot, options, options.verify);
  stats.tensors = targets.size();
  return stats;
}

Tensor Reader::load_slice(std::string_view name, std::span<const Slice> slices, const LoadOptions& options) const {
  const TensorInfo& tensor = state_->tensors[state_->require(name)];
  const std::vector<Slice> ranges = complete_slices(tensor, slices);
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
    if (wanted > 0) read_wants(*state_, wants, wanted, arena->reused, options, /*verify=*/false);
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
