// Reader::load_into: reads whose destination is given, tensor by tensor.
#include <algorithm>
#include <optional>

#include "api/load/part.h"
#include "api/load/reading.h"
#include "api/load/target_memory.h"
#include "api/load/views.h"
#include "base/error.h"
#include "base/tuning.h"
#include "io/residency.h"

namespace penstock {
namespace {

// A target whose tensor and size were checked.
struct ResolvedTarget {
  const TensorInfo* tensor = nullptr;
  TargetMemory memory;
  DType dtype = DType::kU8;
  MemoryPlace place;
  PartRuns runs;  // one, where all of the tensor is wanted
  bool is_part = false;
  const Part* part = nullptr;  // as it was given

  std::uint64_t most_pieces() const { return memory.most_pieces(runs.count()); }
};

ResolvedTarget resolve(const Reader::State& state, const Target& target) {
  const TensorInfo& tensor = state.tensors[state.require(target.name)];
  const DType dtype = target.dtype.value_or(tensor.dtype);
  if (dtype != tensor.dtype && !dtype_can_cast(tensor.dtype, dtype)) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{}: tensor {}: {} can't be converted to {}", state.files[tensor.file]->path(),
                            in_quotes(tensor.name), dtype_name(tensor.dtype), dtype_name(dtype)));
  }
  PartRuns runs(tensor, target.part);
  TargetMemory memory(target, tensor, runs.shape(), dtype, state.files[tensor.file]->path());
  return {&tensor,         std::move(memory),    dtype,       find_place(target.bytes.data()),
          std::move(runs), !target.part.empty(), &target.part};
}

void refuse_repeats(const std::vector<ResolvedTarget>& sorted) {
  // Several parts may be wanted, each elsewhere.
  const auto same = [](const ResolvedTarget& a, const ResolvedTarget& b) {
    return a.tensor == b.tensor && !(a.is_part && b.is_part);
  };
  const auto repeat = std::adjacent_find(sorted.begin(), sorted.end(), same);
  if (repeat != sorted.end()) throw_argument("tensor {} has two targets", in_quotes(repeat->tensor->name));
}

// One for each file and kind of memory that something of it goes to.
std::vector<WantedBytes> wanted_by_file(const Reader::State& state, std::span<const ResolvedTarget> sorted, bool reused,
                                        DeviceUse& devices) {
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
    if (target.is_part) found->largest_gap = tuning::kLargestPartGap;
    const std::size_t before = found->segments.size();
    target.memory.add_runs(target.runs, owner, tensor.dtype, target.dtype, found->segments);
    if (found->segments.size() > before) found->segments[before].apart = target.place.is_first;
  }
  for (WantedBytes& each : wanted) {
    if (each.largest_gap == tuning::kLargestGap) continue;
    // Runs of tensors over the same bytes may lie between each other.
    std::stable_sort(each.segments.begin(), each.segments.end(),
                     [](const Segment& a, const Segment& b) { return a.offset < b.offset; });
  }
  return wanted;
}

// What was put together elsewhere.
void hand_out(const Tensor& tensor, const ResolvedTarget& target, bool reused, DeviceUse& devices) {
  const std::uint64_t width = std::max(dtype_bits(tensor.dtype) / 8, 1u);
  const std::uint64_t count = tensor.bytes.size() / width;
  target.memory.for_each(0, count, [&](std::uint64_t element, std::uint64_t length, std::uint64_t address) {
    auto* const to = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
    fill(given_memory(to, reused, target.place, devices), tensor.bytes.subspan(element * width, length * width));
  });
}

// The first targets whose runs make a plan of a bounded size.
std::size_t count_of_portion(std::span<const ResolvedTarget> targets) {
  std::uint64_t runs = 0;
  std::size_t count = 0;
  while (count < targets.size() && (count == 0 || runs + targets[count].most_pieces() <= tuning::kMostRuns)) {
    runs += targets[count++].most_pieces();
  }
  return count;
}

// What several reads did one after the other; they went the same way.
void add_counts(Stats& sum, const Stats& part) {
  const std::uint64_t direct = sum.bytes_direct + part.bytes_direct;
  const std::uint64_t buffered = sum.bytes_buffered + part.bytes_buffered;
  const std::uint64_t copied = sum.bytes_copied + part.bytes_copied;
  const std::uint64_t on_drive = sum.bytes_on_drive + part.bytes_on_drive;
  const std::uint64_t requests = sum.requests + part.requests;
  const std::uint64_t resumed = sum.resumed + part.resumed;
  const std::uint64_t gds = sum.bytes_gds + part.bytes_gds;
  const double seconds = sum.seconds + part.seconds;
  sum = part;
  sum.bytes_direct = direct;
  sum.bytes_buffered = buffered;
  sum.bytes_copied = copied;
  sum.bytes_on_drive = on_drive;
  sum.requests = requests;
  sum.resumed = resumed;
  sum.bytes_gds = gds;
  sum.seconds = seconds;
  sum.path = name_path(direct, buffered);
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
  std::uint64_t nbytes_of_views = 0;
  bool reused = true;
  DeviceUse devices;
  for (const Target& target : targets) {
    resolved.push_back(resolve(*state_, target));
    nbytes += resolved.back().runs.nbytes();
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
    hand_out(load_view(*state_, part_of_view(*target.tensor, *target.part), converting), target, reused, devices);
    nbytes_of_views += target.runs.nbytes();
  }
  const bool has_parts = std::any_of(resolved.begin(), resolved.end(), [](const auto& each) { return each.is_part; });
  const bool in_portions = has_parts || std::any_of(resolved.begin(), resolved.end(),
                                                    [](const auto& each) { return !each.memory.is_one_stretch(); });
  if (options.verify != Verify::kOff && has_parts) {
    throw_argument("parts of tensors can't be verified: checksums are of whole tensors");
  }
  const std::unique_ptr<Verification> verification = start_verification(*state_, options, tensors);
  // What has an address of its own can't be mapped there.
  LoadOptions reading = options;
  reading.allocate = {};
  if (reading.cache == CachePolicy::kAuto) reading.cache = CachePolicy::kCopy;
  Stats stats;
  std::uint64_t done = 0;
  const std::uint64_t total = nbytes - nbytes_of_views;
  std::span<const ResolvedTarget> left(resolved);
  do {
    const std::span<const ResolvedTarget> portion = left.first(in_portions ? count_of_portion(left) : left.size());
    left = left.subspan(portion.size());
    if (in_portions && options.progress) {
      reading.progress = [&](const Progress& now) {
        return options.progress({done + now.bytes_done, total, stats.seconds + now.seconds});
      };
    }
    const Stats part =
        read_all(*state_, wanted_by_file(*state_, portion, reused, devices), reading, devices, {}, verification.get());
    done += part.bytes;
    add_counts(stats, part);
  } while (!left.empty());
  if (verification) verification->check();
  stats.bytes = total;
  stats.tensors = targets.size();
  return stats;
}

}  // namespace penstock
