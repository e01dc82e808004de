#include "penstock/reader.h"

#include <algorithm>

#include "api/files/reader_state.h"
#include "api/load/map.h"
#include "api/load/narrow.h"
#include "api/load/reading.h"
#include "api/load/views.h"
#include "base/error.h"
#include "base/tuning.h"

namespace penstock {
namespace {

// Tells the caller how far it is, now and then.
class MappingProgress {
 public:
  MappingProgress(const ProgressFunction& progress, std::uint64_t total) : progress_(progress), total_(total) {}

  void add(std::uint64_t bytes) {
    done_ += bytes;
    if (watch_.seconds() < next_) return;
    next_ = watch_.seconds() + tuning::kProgressSeconds;
    report(std::min(done_, total_));
  }

  void report(std::uint64_t bytes_done) const {
    const Progress now{bytes_done, total_, watch_.seconds()};
    if (progress_ && !progress_(now)) throw Error(ErrorKind::kCancelled, "cancelled");
  }

  double seconds() const { return watch_.seconds(); }

 private:
  const ProgressFunction& progress_;
  const std::uint64_t total_;
  const Stopwatch watch_;
  std::uint64_t done_ = 0;
  double next_ = 0;
};

LoadResult map_selection(const Selection& selection, const LoadOptions& options, const MapDecision& decision) {
  LoadResult result;
  result.tensors.reserve(selection.count);
  MappingProgress progress(options.progress, selection.nbytes);
  const auto pool = host_pool(options.pool);
  for (const FileSelection& selected : selection.files) {
    selected.file->check_unchanged();
    const auto mapped = map_range(*selected.file, selected.hull());
    if (decision.reason == MapReason::kPartlyCached) {
      complete(*selected.file, selected.tensors, *mapped, [&](std::uint64_t bytes) { progress.add(bytes); });
    }
    std::vector<Tensor> tensors = map_tensors(*selected.file, selected.tensors, mapped, *pool, result.stats);
    std::move(tensors.begin(), tensors.end(), std::back_inserter(result.tensors));
  }
  describe_mapping(decision, selection.nbytes, result.stats);
  result.stats.seconds = progress.seconds();
  progress.report(selection.nbytes);
  return result;
}

std::vector<Tensor> make_tensors(const Selection& selection, const std::vector<PlacedFile>& placed) {
  std::vector<Tensor> tensors;
  tensors.reserve(selection.count);
  for (std::size_t i = 0; i < placed.size(); ++i) {
    const std::vector<const TensorInfo*>& infos = selection.files[i].tensors;
    for (std::size_t k = 0; k < infos.size(); ++k) {
      tensors.push_back(make_tensor(*infos[k], placed[i].placement.tensors[k], placed[i].memory));
    }
  }
  return tensors;
}

LoadResult read_selection(const Reader::State& state, const Selection& selection, const LoadOptions& options,
                          std::span<const FileFacts> facts) {
  const std::unique_ptr<Verification> verification = start_verification(state, options, all_selected(selection));
  DeviceUse devices;
  std::vector<PlacedFile> placed;
  std::vector<WantedBytes> wanted;
  std::uint64_t moved = 0;
  for (const FileSelection& file : selection.files) {
    placed.push_back(take_memory(state, file, options, devices));
    PlacedFile& last = placed.back();
    wanted.push_back({file.number, std::move(last.placement.segments), last.memory, file.largest_gap});
    for (const PlacedTensor& tensor : last.placement.tensors) moved += tensor.moved;
  }
  LoadResult result;
  result.stats = read_all(state, std::move(wanted), options, devices, facts, verification.get(), [&] {
    result.tensors = make_tensors(selection, placed);
    if (options.placed && selection.views.empty()) options.placed(result.tensors);
  });
  if (verification) verification->check();
  result.stats.bytes = selection.nbytes;
  result.stats.tensors = selection.count;
  result.stats.tensors_moved = moved;
  return result;
}

// Parts that are many runs: portion by portion, as a stream reads them, so that a plan never holds them all.
LoadResult load_portions(const Reader& reader, const Selection& selection, const LoadOptions& options) {
  LoadResult result;
  const Reader::State& state = ReaderAccess::state(reader);
  std::uint64_t nbytes = 0;
  for (const TensorInfo* tensor : all_selected(selection)) nbytes += loaded_size(*tensor, options);
  const MemoryClaim claim = require_room(state, decide_settings(options.io, nbytes), options.allocate ? 0 : nbytes);
  TensorStream stream = reader.stream(options);
  while (auto tensor = stream.next()) result.tensors.push_back(std::move(*tensor));
  std::sort(result.tensors.begin(), result.tensors.end(),
            [&state](const Tensor& a, const Tensor& b) { return state.find(a.name) < state.find(b.name); });
  result.stats = stream.stats();
  if (options.placed) options.placed(result.tensors);
  return result;
}

}  // namespace

Reader::Reader(const std::filesystem::path& path) : Reader(std::span(&path, 1)) {}
Reader::Reader(std::span<const std::filesystem::path> paths) : state_(open_checkpoint(paths)) {}
Reader::Reader(std::shared_ptr<const State> state) : state_(std::move(state)) {}
Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;
Reader::~Reader() = default;

std::span<const TensorInfo> Reader::tensors() const noexcept {
  return state_->tensors;
}
const TensorInfo* Reader::find(std::string_view name) const noexcept {
  return state_->find(name);
}
std::span<const FileInfo> Reader::files() const noexcept {
  return state_->infos;
}
const Metadata& Reader::metadata() const noexcept {
  return state_->metadata;
}

const Reader::State& ReaderAccess::state(const Reader& reader) {
  return *reader.state_;
}

Reader ReaderAccess::make(std::shared_ptr<const Reader::State> state) {
  return Reader(std::move(state));
}

LoadResult Reader::load(const LoadOptions& options) const {
  Selection selection = select_tensors(*state_, options.select);
  NarrowedTensors narrowed;
  narrow(*state_, options, selection, narrowed);
  if (!narrowed.scattered.empty()) return load_portions(*this, selection, options);
  const ReadRequest request = read_request(options);
  const std::vector<FileFacts> facts = gather_facts(*state_, selection, request);
  const MapDecision mapping = decide_mapping(request, facts);
  LoadResult result =
      mapping.map ? map_selection(selection, options, mapping) : read_selection(*state_, selection, options, facts);
  add_views(*state_, selection, options, result);
  if (options.placed && (mapping.map || !selection.views.empty())) options.placed(result.tensors);
  return result;
}

std::uint64_t Reader::resident_bytes() const {
  std::uint64_t bytes = 0;
  const std::vector<ByteRange> ranges = wanted_ranges(*state_, select_tensors(*state_, {}));
  for (std::size_t i = 0; i < ranges.size(); ++i) bytes += state_->files[i]->resident_bytes(ranges[i]);
  return bytes;
}

}  // namespace penstock
