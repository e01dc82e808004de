// Reader::load_into: reads whose destination is given, tensor by tensor.
#include <algorithm>
#include <optional>

#include "api/load/reading.h"
#include "api/load/views.h"
#include "base/error.h"
#include "io/residency.h"

namespace penstock {
namespace {

// A target whose tensor and size were checked.
struct ResolvedTarget {
  const TensorInfo* tensor = nullptr;
  std::uint64_t address = 0;
  DType dtype = DType::kU8;
  MemoryPlace place;
};

std::uint64_t converted_nbytes(const TensorInfo& tensor, DType dtype) {
  if (dtype == tensor.dtype) return tensor.nbytes;
  return tensor.nbytes / (dtype_bits(tensor.dtype) / 8) * (dtype_bits(dtype) / 8);
}

ResolvedTarget resolve(const Reader::State& state, const Target& target) {
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
  return {&tensor, reinterpret_cast<std::uintptr_t>(target.bytes.data()), dtype, find_place(target.bytes.data())};
}

void refuse_repeats(const std::vector<ResolvedTarget>& sorted) {
  const auto same = [](const ResolvedTarget& a, const ResolvedTarget& b) { return a.tensor == b.tensor; };
  const auto repeat = std::adjacent_find(sorted.begin(), sorted.end(), same);
  if (repeat != sorted.end()) throw_argument("tensor {} has two targets", in_quotes(repeat->tensor->name));
}

// One for each file and kind of memory that something of it goes to.
std::vector<WantedBytes> wanted_by_file(const Reader::State& state, const std::vector<ResolvedTarget>& sorted,
                                        bool reused, DeviceUse& devices) {
  std::vector<WantedBytes> wanted;
  for (const ResolvedTarget& target : sorted) {
    const TensorInfo& tensor = *target.tensor;
    if (!tensor.byte_strides.empty()) continue;
    LandingMemory memory = given_memory(nullptr, reused, target.place, devices);
    auto found = std::find_if(wanted.begin(), wanted.end(), [&](const WantedBytes& each) {
      return each.file == tensor.file && each.memory.lanes == memory.lanes &&
             each.memory.facts.shared_with_device == memory.facts.shared_with_device;
    });
    if (found == wanted.end()) found = wanted.insert(wanted.end(), {tensor.file, {}, std::move(memory)});
    const auto owner = static_cast<std::uint32_t>(&tensor - state.tensors.data());
    Segment segment{tensor.offset, tensor.nbytes, target.address, owner, tensor.dtype, target.dtype};
    segment.apart = target.place.is_first;
    found->segments.push_back(segment);
  }
  return wanted;
}

// Asking the kernel page by page is only worth it for memory that matters.
bool is_resident(const Target& target, const MemoryPlace& place) {
  if (place.device != nullptr || place.unified) return true;
  return target.bytes.size() < kMiB || memory_is_resident(target.bytes.data(), target.bytes.size());
}

}  // namespace

Stats Reader::load_into(std::span<const Target> targets, const LoadOptions& options) const {
  std::vector<ResolvedTarget> resolved;
  std::uint64_t nbytes = 0;
  bool reused = true;
  DeviceUse devices;
  for (const Target& target : targets) {
    resolved.push_back(resolve(*state_, target));
    nbytes += resolved.back().tensor->nbytes;
    const MemoryPlace& place = resolved.back().place;
    reused = reused && is_resident(target, place);
    if (place.device != nullptr) devices.lanes(place.device);
  }
  devices.wait_for_caller(options.streams);
  std::sort(resolved.begin(), resolved.end(), [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  refuse_repeats(resolved);
  std::vector<const TensorInfo*> tensors;
  for (const ResolvedTarget& target : resolved) {
    tensors.push_back(target.tensor);
    if (target.tensor->byte_strides.empty()) continue;
    LoadOptions converting = options;
    converting.dtype = target.dtype;
    converting.allocate = {};
    const Tensor tensor = load_view(*state_, *target.tensor, converting);
    auto* const address = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(target.address));
    fill(given_memory(address, reused, target.place, devices), tensor.bytes);
    nbytes -= target.tensor->nbytes;
  }
  std::optional<Verification> verification;
  if (options.verify) verification.emplace(*state_, StoredChecksums(*state_), tensors);
  // What has an address of its own can't be mapped there.
  LoadOptions reading = options;
  reading.allocate = {};
  if (reading.cache == CachePolicy::kAuto) reading.cache = CachePolicy::kCopy;
  Stats stats = read_all(*state_, wanted_by_file(*state_, resolved, reused, devices), reading, devices, {},
                         verification ? &*verification : nullptr);
  if (verification) verification->check();
  stats.bytes = nbytes;
  stats.tensors = targets.size();
  return stats;
}

}  // namespace penstock
