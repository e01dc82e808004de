#include "api/load/reading.h"

#include <algorithm>

#include "base/error.h"

namespace penstock {
namespace {

// What a verification wants to see of files, between what is wanted of them anyway.
void add_further_segments(const Reader::State& state, const Verification& verification,
                          std::vector<WantedBytes>& wanted) {
  for (std::uint32_t file = 0; file < state.files.size(); ++file) {
    const std::vector<Segment> further = verification.further_segments(file);
    if (further.empty()) continue;
    auto found = std::find_if(wanted.begin(), wanted.end(), [&](const WantedBytes& each) { return each.file == file; });
    if (found == wanted.end()) found = wanted.insert(wanted.end(), WantedBytes{file, {}, {}});
    found->segments.insert(found->segments.end(), further.begin(), further.end());
    std::stable_sort(found->segments.begin(), found->segments.end(),
                     [](const Segment& a, const Segment& b) { return a.offset < b.offset; });
  }
}

// The file, for the device that its bytes go to; nothing, with a reason for the statistics, where they go through
// staging.
std::shared_ptr<DeviceFile> open_for_device(const WantedBytes& wanted, const File& file, const FileFacts& facts,
                                            DeviceUse& devices) {
  if (wanted.memory.lanes == nullptr || !devices.gds()->is_on() || wanted.segments.empty()) return nullptr;
  GdsUse& gds = *devices.gds();
  if (!facts.direct) {
    const std::string& refusal = file.direct().refusal;
    gds.note_staged(refusal.empty() ? fmt::format("{}: its bytes come from the page cache", file.path())
                                    : fmt::format("{}: no direct I/O: {}", file.path(), refusal));
    return nullptr;
  }
  const bool all_converted = std::all_of(wanted.segments.begin(), wanted.segments.end(),
                                         [](const Segment& segment) { return segment.converts(); });
  if (all_converted) {
    gds.note_staged(fmt::format("{}: what is converted passes through the host", file.path()));
    return nullptr;
  }
  return gds.open(wanted.memory.lanes->device(), file.direct().fd.get(), file.path());
}

std::uint32_t number_of(const Reader::State& state, const TensorInfo* tensor) {
  return static_cast<std::uint32_t>(tensor - state.tensors.data());
}

}  // namespace

void start_gds(const LoadOptions& options, DeviceUse& devices) {
  devices.start_gds(options.gds, options.verify != Verify::kOff ? "checksums are taken on the host (verify)" : "");
}

PlacedFile take_memory(const Reader::State& state, const FileSelection& selection, const LoadOptions& options,
                       DeviceUse& devices) {
  PlacedFile placed;
  placed.placement = place_tensors(selection.tensors, options.dtype, selection.scattered);
  placed.memory = take_memory(placed.placement.arena_size, options, devices);
  const auto base = reinterpret_cast<std::uintptr_t>(placed.memory.data);
  for (Segment& segment : placed.placement.segments) {
    segment.address += base;
    // Only checksums ask for owners, which are of whole tensors.
    segment.owner = options.verify != Verify::kOff ? number_of(state, selection.tensors[segment.owner]) : 0;
  }
  return placed;
}

Tensor make_tensor(const TensorInfo& info, const PlacedTensor& placed, const LandingMemory& memory) {
  return {info.name,
          placed.dtype,
          info.shape,
          {memory.data + placed.address, static_cast<std::size_t>(placed.nbytes)},
          memory.owner};
}

std::vector<FileRead> route_reads(const Reader::State& state, std::vector<WantedBytes> wanted,
                                  const ReadRequest& request, std::span<const FileFacts> known, std::uint64_t nbytes,
                                  std::uint64_t block_size, const std::shared_ptr<HugePageBudget>& budget,
                                  DeviceUse& devices) {
  std::vector<FileRead> reads;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    WantedBytes& each = wanted[i];
    const auto& file = state.files[each.file];
    for (const ByteRange& stretch : stretches_of(each.segments)) state.require_unpacked(each.file, stretch);
    FileFacts facts = i < known.size()
                          ? known[i]
                          : gather_facts(state, each.file, stretches_of(each.segments), request, /*mapping=*/false);
    add_read_facts(*file, request, nbytes, facts);
    const std::shared_ptr<DeviceFile> device_file = open_for_device(each, *file, facts, devices);
    each.memory.facts.direct_storage = device_file != nullptr;
    const ReadRoute route = decide_read(request, facts, each.memory.facts, nbytes, block_size);
    auto destination = make_destination(each.memory, route, block_size, budget, device_file, devices);
    reads.push_back({file, std::move(each.segments), route, std::move(destination), each.largest_gap});
  }
  return reads;
}

Stats read_all(const Reader::State& state, std::vector<WantedBytes> wanted, const LoadOptions& options,
               DeviceUse& devices, std::span<const FileFacts> known, Verification* verification,
               const std::function<void()>& meanwhile) {
  const Stopwatch watch;
  PieceObserver observe;
  if (verification != nullptr) {
    add_further_segments(state, *verification, wanted);
    observe = [verification](const Piece& piece, const std::byte* bytes) { verification->look(piece, bytes); };
  }
  std::uint64_t nbytes = 0;
  for (const WantedBytes& each : wanted) {
    for (const Segment& segment : each.segments) nbytes += segment.nbytes;
  }
  start_gds(options, devices);
  Settings settings = decide_settings(options.io, nbytes, Direction::kRead, devices.passage());
  std::uint64_t taken = 0;
  for (const WantedBytes& each : wanted) taken += each.memory.taken;
  const MemoryClaim claim = require_room(state, settings, taken);
  StagingFactory staging = devices.staging(settings, host_pool(options.pool));
  ReadSession session(std::move(settings), std::move(staging));
  const auto batch =
      session.start(route_reads(state, std::move(wanted), read_request(options), known, nbytes,
                                session.settings().block_size, std::make_shared<HugePageBudget>(), devices),
                    std::move(observe));
  ReadSession::wait(*batch, options.progress, nbytes, watch, meanwhile);
  Stats stats;
  session.finish(stats);
  devices.describe(stats);
  stats.bytes = nbytes;
  stats.seconds = watch.seconds();
  return stats;
}

std::uint64_t loaded_size(const TensorInfo& tensor, const LoadOptions& options) {
  return converted_size(tensor.nbytes, tensor.dtype, loaded_dtype(tensor, options.dtype));
}

MemoryClaim require_room(const Reader::State& state, const Settings& settings, std::uint64_t nbytes) {
  if (nbytes == 0) return {};
  return settings.budget.require(state.files.front()->path(), "a load", nbytes, settings.staging_bytes(),
                                 "a stream, a mapped load or a part of the tensors takes less");
}

std::vector<const TensorInfo*> all_selected(const Selection& selection) {
  std::vector<const TensorInfo*> tensors = selection.views;
  for (const FileSelection& file : selection.files) {
    tensors.insert(tensors.end(), file.tensors.begin(), file.tensors.end());
  }
  std::sort(tensors.begin(), tensors.end());
  return tensors;
}

}  // namespace penstock
