#include "api/load/reading.h"

#include <algorithm>

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

}  // namespace

PlacedFile take_memory(const Reader::State& state, const FileSelection& selection, const LoadOptions& options,
                       DeviceUse& devices) {
  PlacedFile placed;
  placed.placement = place_tensors(selection.tensors, options.dtype);
  placed.memory = take_memory(placed.placement.arena_size, options, devices);
  const auto base = reinterpret_cast<std::uintptr_t>(placed.memory.data);
  for (Segment& segment : placed.placement.segments) {
    segment.address += base;
    segment.owner = static_cast<std::uint32_t>(selection.tensors[segment.owner] - state.tensors.data());
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
                                  std::uint64_t block_size, const std::shared_ptr<HugePageBudget>& budget) {
  std::vector<FileRead> reads;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    WantedBytes& each = wanted[i];
    const auto& file = state.files[each.file];
    for (const ByteRange& stretch : stretches_of(each.segments)) state.require_unpacked(each.file, stretch);
    FileFacts facts = i < known.size()
                          ? known[i]
                          : gather_facts(state, each.file, stretches_of(each.segments), request, /*mapping=*/false);
    add_read_facts(*file, request, nbytes, facts);
    const ReadRoute route = decide_read(request, facts, each.memory.facts, nbytes, block_size);
    reads.push_back({file, std::move(each.segments), route, make_destination(each.memory, route, block_size, budget)});
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
  Settings settings = decide_settings(options.io, nbytes, Direction::kRead, devices.passage());
  StagingFactory staging = devices.staging(settings, host_pool(options.pool));
  ReadSession session(std::move(settings), std::move(staging));
  const auto batch = session.start(route_reads(state, std::move(wanted), read_request(options), known, nbytes,
                                               session.settings().block_size, std::make_shared<HugePageBudget>()),
                                   std::move(observe));
  ReadSession::wait(*batch, options.progress, nbytes, watch, meanwhile);
  Stats stats;
  session.finish(stats);
  devices.describe(stats);
  stats.bytes = nbytes;
  stats.seconds = watch.seconds();
  return stats;
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
