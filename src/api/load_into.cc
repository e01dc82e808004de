// Reader::load_into: reads whose destination is given, tensor by tensor.
#include <algorithm>
#include <cstring>

#include "api/verify_records.h"
#include "api/views.h"
#include "base/error.h"
#include "io/residency.h"

namespace penstock {
namespace {

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
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{}: tensor {}: {} can't be converted to {}", state.files[tensor.file]->path(),
                            in_quotes(tensor.name), dtype_name(tensor.dtype), dtype_name(dtype)));
  }
  const std::uint64_t expected = converted_nbytes(tensor, dtype);
  if (target.bytes.size() != expected) {
    throw Error(ErrorKind::kArgument,
                fmt::format("{}: tensor {} has {} bytes as {}, its target has {}", state.files[tensor.file]->path(),
                            in_quotes(tensor.name), expected, dtype_name(dtype), target.bytes.size()));
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
    if (!tensor.byte_strides.empty()) continue;
    if (wants.empty() || wants.back().file != state.files[tensor.file]) wants.push_back({state.files[tensor.file], {}});
    const auto owner = static_cast<std::uint32_t>(&tensor - state.tensors.data());
    wants.back().segments.push_back(
        {tensor.offset, tensor.nbytes, destination.address, owner, tensor.dtype, destination.dtype});
  }
  return wants;
}

}  // namespace

Stats read_wants(const Reader::State& state, const std::vector<FileWants>& wants, std::uint64_t nbytes, bool hot,
                 const LoadOptions& options, bool verify) {
  const Stopwatch watch;
  Stats stats;
  ReadPlan plan = plan_reads(wants, nbytes, {.hot = hot}, options, verify);
  auto batch = std::make_shared<ReadBatch>();
  batch->populate = !hot;
  ChecksumCollector collector;
  std::vector<bool> loaded(verify ? state.tensors.size() : 0);
  if (verify) {
    batch->observe = [&collector](const Piece& piece, const std::byte* bytes) {
      collector.add(piece.owner, piece.offset, bytes, piece.nbytes);
    };
  }
  if (verify) {
    for (const FileWants& file : wants) {
      for (const Segment& segment : file.segments) loaded[segment.owner] = true;
    }
  }
  batch->tasks = std::move(plan.tasks);
  Crew crew(plan.settings, host_pool(options.pool));
  start_reading(crew, batch);
  wait_with_progress(*batch, options.progress, nbytes, watch);
  check_unchanged(batch->tasks);
  crew.stop();
  describe(crew, plan.settings, stats);
  if (verify) check_checksums(state, collector, state.expected_checksums(), loaded);
  stats.bytes = nbytes;
  describe_landing(plan.landing, plan.buffered_because, stats);
  stats.seconds = watch.seconds();
  return stats;
}

Stats Reader::load_into(std::span<const Target> targets, const LoadOptions& options) const {
  if (options.verify) require_intact_records(*state_, options.io);
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
  for (const Destination& destination : destinations) {
    if (destination.tensor->byte_strides.empty()) continue;
    LoadOptions converting = options;
    converting.dtype = destination.dtype;
    const Tensor tensor = load_view(*state_, *destination.tensor, converting);
    std::memcpy(reinterpret_cast<void*>(static_cast<std::uintptr_t>(destination.address)), tensor.bytes.data(),
                tensor.bytes.size());
    nbytes -= destination.tensor->nbytes;
  }
  Stats stats = read_wants(*state_, wants_by_file(*state_, destinations), nbytes, hot, options, options.verify);
  stats.tensors = targets.size();
  return stats;
}

}  // namespace penstock
