// Reader::load_slice: a part of one tensor.
#include <optional>
#include <utility>

#include "api/load/map.h"
#include "api/load/part.h"
#include "api/load/reading.h"
#include "api/load/slice_room.h"
#include "api/load/slice_sharing.h"
#include "api/load/views.h"
#include "base/error.h"
#include "base/page.h"
#include "base/tuning.h"

namespace penstock {
namespace {

// A tensor that lies in the file as it is wanted, from a file that the page cache holds: a view of it. Nothing where
// the route of `facts` is another one.
std::optional<Tensor> map_slice(const File& file, SliceMap& shared, const TensorInfo& tensor, Shape shape,
                                ByteRange range, const ReadRequest& request, const FileFacts& facts) {
  if (!is_aligned(range.begin, dtype_alignment(tensor.dtype))) return std::nullopt;
  const MapDecision decision = decide_mapping(request, {&facts, 1});
  // Completing a mapping is for whole files: who reads tensor by tensor would wait for each.
  if (decision.reason != MapReason::kMapAsked && decision.reason != MapReason::kAllCached) return std::nullopt;
  file.check_unchanged();
  if (std::shared_ptr<std::byte> bytes = shared.take(file, range)) {
    std::byte* const data = bytes.get();
    return Tensor{tensor.name, tensor.dtype, std::move(shape), {data, range.size()}, std::move(bytes)};
  }
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

// A stretch of a file, in memory of its own, where direct reads can land as they are.
std::shared_ptr<const std::byte> read_stretch(const Reader::State& state, std::uint32_t file, ByteRange range,
                                              LoadOptions options) {
  options.cache = CachePolicy::kCopy;
  options.verify = Verify::kOff;
  options.progress = {};
  const std::uint64_t lead = range.begin % page_size();
  DeviceUse devices;
  const LandingMemory memory = take_memory(lead + range.size(), options, devices);
  std::byte* const data = memory.data + lead;
  const Segment whole{range.begin, range.size(), reinterpret_cast<std::uintptr_t>(data)};
  read_all(state, {{file, {whole}, memory}}, options, devices);
  return {memory.owner, data};
}

// Copies a small cold slice out of a window that holds its neighbours too. Nothing where it is not one of a row.
std::optional<Tensor> slice_of_window(const Reader::State& state, const TensorInfo& tensor, Shape shape,
                                      ByteRange range, const LoadOptions& options) {
  const File& file = *state.files[tensor.file];
  SliceWindows& windows = SliceSharing::of(state, tensor.file).windows;
  if (range.size() > tuning::kLargestWindowedSlice) {
    windows.note(range);
    return std::nullopt;
  }
  auto arena = host_pool(options.pool)->allocate(range.size());
  const auto fill = [&](ByteRange window) { return read_stretch(state, tensor.file, window, options); };
  if (!windows.copy(range, file.size(), fill, arena->data())) {
    windows.note(range);
    return std::nullopt;
  }
  file.check_unchanged();
  return Tensor{tensor.name, tensor.dtype, std::move(shape), {arena->data(), range.size()}, arena};
}

// Reads a slice run by run, so many at a time.
void read_runs(const Reader::State& state, const TensorInfo& tensor, const PartRuns& part, DType dtype,
               const LandingMemory& memory, DeviceUse& devices, LoadOptions options) {
  if (options.cache == CachePolicy::kAuto) options.cache = CachePolicy::kCopy;
  options.verify = Verify::kOff;
  std::vector<Segment> runs;
  const auto read = [&] {
    if (!runs.empty()) read_all(state, {{tensor.file, std::exchange(runs, {}), memory}}, options, devices);
  };
  std::uint64_t address = reinterpret_cast<std::uintptr_t>(memory.data);
  part.for_each([&](std::uint64_t offset, std::uint64_t nbytes) {
    runs.push_back({offset, nbytes, address, 0, tensor.dtype, dtype});
    address += converted_size(nbytes, tensor.dtype, dtype);
    if (runs.size() == tuning::kMostRuns) read();
  });
  read();
}

// A slice that lies in the file in one stretch, as it is wanted: mapped, or copied without a plan and a crew. Nothing
// where it is to be read like any other.
std::optional<Tensor> slice_as_it_is(const Reader::State& state, const TensorInfo& tensor, const Shape& shape,
                                     ByteRange range, const LoadOptions& options) {
  const File& file = *state.files[tensor.file];
  ReadRequest request = read_request(options);
  request.converts = request.verifies = false;
  const bool small = range.size() < tuning::kSmallestMappedSlice;
  const bool may_be_mapped = !small || options.cache == CachePolicy::kMap;
  const bool may_choose = options.cache == CachePolicy::kAuto && request.landing == Landing::kAuto;
  const FileFacts facts = gather_facts(state, tensor.file, {&range, 1}, request, may_be_mapped);
  const bool cached = facts.resident == facts.wanted || options.cache == CachePolicy::kBuffered;
  if (may_be_mapped) {
    SliceMap& shared = SliceSharing::of(state, tensor.file).map;
    if (auto mapped = map_slice(file, shared, tensor, shape, range, request, facts)) return mapped;
    if (may_choose && is_short_of_memory(range.size(), options.io)) {
      request.cache = CachePolicy::kMap;
      if (auto mapped = map_slice(file, shared, tensor, shape, range, request, facts)) return mapped;
    }
  }
  // Who reads small tensors one by one waits for system calls only.
  if (small && cached && request.landing == Landing::kAuto) {
    auto arena = host_pool(options.pool)->allocate(range.size());
    file.read(range.begin, arena->data(), range.size());
    file.check_unchanged();
    return Tensor{tensor.name, tensor.dtype, shape, {arena->data(), range.size()}, arena};
  }
  if (!cached && range.size() > 0 && may_choose) return slice_of_window(state, tensor, shape, range, options);
  return std::nullopt;
}

}  // namespace

SliceSharing& SliceSharing::of(const Reader::State& state, std::uint32_t file) {
  const auto& shared = state.sharing.get().get([&] {
    std::vector<std::shared_ptr<SliceSharing>> fresh(state.files.size());
    for (auto& each : fresh) each = std::make_shared<SliceSharing>();
    return fresh;
  });
  return *shared[file];
}

Tensor Reader::load_slice(std::string_view name, std::span<const Slice> slices, const LoadOptions& options) const {
  const TensorInfo& tensor = state_->tensors[state_->require(name)];
  if (!tensor.byte_strides.empty()) return load_view(*state_, part_of_view(tensor, to_part(slices)), options);
  const PartRuns part(tensor, to_part(slices));
  const DType dtype = loaded_dtype(tensor, options.dtype);
  const Shape& shape = part.shape();
  const std::uint64_t nbytes = converted_size(part.nbytes(), tensor.dtype, dtype);
  const bool as_it_is = dtype == tensor.dtype && part.count() == 1;
  if (as_it_is && !options.allocate) {
    if (auto slice = slice_as_it_is(*state_, tensor, shape, part.extent(), options)) return std::move(*slice);
  }

  DeviceUse devices;
  LandingMemory memory = take_memory(nbytes, options, devices);
  memory.facts.may_have_huge_pages = false;  // a run is rarely as large
  memory.pages = nullptr;
  read_runs(*state_, tensor, part, dtype, memory, devices, options);
  return {tensor.name, dtype, shape, {memory.data, static_cast<std::size_t>(nbytes)}, memory.owner};
}

}  // namespace penstock
