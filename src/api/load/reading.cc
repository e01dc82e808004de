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
    if (found == wanted.end()) found = wanted.insert(wanted.end(), WantedBytes{file, {}, {}, {}});
    found->segments.insert(found->segments.end(), further.begin(), further.end());
    std::stable_sort(found->segments.begin(), found->segments.end(),
                     [](const Segment& a, const Segment& b) { return a.offset < b.offset; });
  }
}

}  // namespace

PlacedFile take_memory(const Reader::State& state, const FileSelection& selection, std::optional<DType> dtype,
                       HostPool& pool) {
  PlacedFile placed;
  placed.placement = place_tensors(selection.tensors, dtype);
  placed.arena = pool.allocate(placed.placement.arena_size);
  const auto base = reinterpret_cast<std::uintptr_t>(placed.arena->data());
  for (Segment& segment : placed.placement.segments) {
    segment.address += base;
    segment.owner = static_cast<std::uint32_t>(selection.tensors[segment.owner] - state.tensors.data());
  }
  return placed;
}

Tensor make_tensor(const TensorInfo& info, const PlacedTensor& placed, const std::shared_ptr<Arena>& arena) {
  return {info.name,
          placed.dtype,
          info.shape,
          {arena->data() + placed.address, static_cast<std::size_t>(placed.nbytes)},
          arena};
}

MemoryFacts memory_facts(const Arena& arena) {
  return {arena.reused, arena.pages != nullptr};
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
    const ReadRoute route = decide_read(request, facts, each.facts, nbytes, block_size);
    auto destination = std::make_shared<HostDestination>(std::move(each.memory), route.landing, budget);
    reads.push_back({file, std::move(each.segments), route, std::move(destination)});
  }
  return reads;
}

Stats read_all(const Reader::State& state, std::vector<WantedBytes> wanted, const LoadOptions& options,
               std::span<const FileFacts> known, Verification* verification, const std::function<void()>& meanwhile) {
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
  ReadSession session(decide_settings(options.io, nbytes), host_pool(options.pool));
  const auto batch = session.start(route_reads(state, std::move(wanted), read_request(options), known, nbytes,
                                               session.settings().block_size, std::make_shared<HugePageBudget>()),
                                   std::move(observe));
  ReadSession::wait(*batch, options.progress, nbytes, watch, meanwhile);
  Stats stats;
  session.finish(stats);
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
