#include "penstock/doctor.h"

#include <algorithm>
#include <cerrno>

#include "api/doctor/doctor.h"
#include "api/load/map.h"
#include "api/load/reading.h"
#include "base/error.h"
#include "io/block_device.h"
#include "io/filesystem.h"
#include "io/residency.h"

namespace penstock {
namespace {

FileDiagnosis diagnose_file(const File& file, const FileInfo& info, ByteRange wanted) {
  FileDiagnosis found;
  found.path = info.path;
  found.size = info.size;
  found.format = info.format;
  const Filesystem filesystem = filesystem_of(file.fd());
  found.filesystem = filesystem.name;
  found.device = filesystem.source;
  found.local = filesystem.local;
  found.in_memory = filesystem.memory;
  found.virtual_drive = on_virtual_drive(file.fd());
  if (const auto read_ahead = read_ahead_of(file.fd())) {
    found.read_ahead = read_ahead->nbytes;
    found.read_ahead_setting = read_ahead->setting.string();
  }
  const File::Direct& direct = file.direct();
  found.direct = static_cast<bool>(direct.fd);
  found.direct_refusal = direct.refusal;
  found.direct_error = direct.error_number;
  found.alignment_reported = direct.reported;
  if (found.direct) {
    found.offset_alignment = direct.alignment.offset;
    found.memory_alignment = direct.alignment.memory;
  }
  const Residency residency = find_residency(file.fd(), wanted);
  found.span = wanted.size();
  found.resident_bytes = residency.nbytes;
  found.residency_source = residency.source;
  found.extents = extent_count(file.fd());
  return found;
}

void count_tensors(const Selection& selection, const std::vector<Placement>& placements, Diagnosis& diagnosis) {
  diagnosis.tensors = selection.count + selection.views.size();
  diagnosis.tensors_scattered = selection.views.size();
  diagnosis.bytes = selection.nbytes;
  for (const TensorInfo* view : selection.views) diagnosis.bytes += view->nbytes;
  for (const Placement& placement : placements) {
    for (const PlacedTensor& placed : placement.tensors) {
      diagnosis.tensors_misaligned += placed.moved;
      diagnosis.bytes_misaligned += placed.moved ? placed.nbytes : 0;
    }
  }
}

// What the crew would count for this block.
void count_block(const ReadTask& task, std::size_t number, Forecast& forecast) {
  Stats& stats = forecast.stats;
  const Block& block = task.plan.blocks[number];
  const std::span pieces = std::span(task.plan.pieces).subspan(block.first_piece, block.piece_count);
  std::uint64_t payload = 0;
  for (const Piece& piece : pieces) payload += piece.nbytes;
  ++stats.requests;
  if (task.buffered[number]) {
    stats.bytes_buffered += payload;
    stats.bytes_on_drive += hull_of(pieces).size();
    if (!task.drop_behind.empty() && task.drop_behind[number]) forecast.bytes_dropped += payload;
  } else {
    stats.bytes_direct += payload;
    stats.bytes_on_drive += block.length;
    if (!block.straight) stats.bytes_copied += payload;
  }
}

// A load with these facts, planned and not made.
class Planned {
 public:
  Planned(const Reader::State& state, const Selection& selection, const LoadOptions& options,
          const std::vector<Placement>& placements)
      : selection_(selection),
        placements_(placements),
        request_(read_request(options)),
        settings_(decide_settings(options.io, selection.nbytes)),
        facts_(gather_facts(state, selection, request_)) {}

  const Settings& settings() const { return settings_; }

  Forecast now(const MemoryFacts& memory, const Diagnosis& diagnosis) const {
    const MapDecision mapping = decide_mapping(request_, facts_);
    return forecast(facts_, mapping, memory, diagnosis);
  }

  // As if nothing of a file were in the page cache.
  Forecast cold(const MemoryFacts& memory, const Diagnosis& diagnosis) const {
    std::vector<FileFacts> facts = facts_;
    for (FileFacts& file : facts) file.resident = 0;
    return forecast(facts, decide_mapping(request_, facts), memory, diagnosis);
  }

 private:
  Forecast forecast(std::span<const FileFacts> facts, const MapDecision& mapping, const MemoryFacts& memory,
                    const Diagnosis& diagnosis) const {
    Forecast forecast;
    forecast.mapping = describe(mapping);
    forecast.mapped = mapping.map;
    forecast.stats.bytes = diagnosis.bytes;
    forecast.stats.tensors = diagnosis.tensors;
    forecast.stats.tensors_moved = diagnosis.tensors_misaligned;
    mapping.map ? forecast_mapping(mapping, diagnosis, forecast) : forecast_reads(facts, memory, forecast);
    return forecast;
  }

  // Misaligned tensors are there only where a mapping was asked for; they are copied out of it.
  void forecast_mapping(const MapDecision& mapping, const Diagnosis& diagnosis, Forecast& forecast) const {
    forecast.stats.bytes_buffered = diagnosis.bytes_misaligned;
    describe_mapping(mapping, selection_.nbytes, forecast.stats);
    forecast.stats.bytes = diagnosis.bytes;
    forecast.backend_reason = "a mapping has no requests of its own";
  }

  void forecast_reads(std::span<const FileFacts> facts, const MemoryFacts& memory, Forecast& forecast) const {
    Stats& stats = forecast.stats;
    ReadRoute main_route;
    std::uint64_t most = 0;
    for (std::size_t i = 0; i < selection_.files.size(); ++i) {
      FileFacts file = facts[i];
      add_read_facts(*selection_.files[i].file, request_, selection_.nbytes, file);
      const ReadRoute route = decide_read(request_, file, memory, selection_.nbytes, settings_.block_size);
      const FileRead read{selection_.files[i].file, placements_[i].segments, route, nullptr};
      const ReadTask task = plan_read(read, request_.verifies, settings_.block_size);
      for (std::size_t block = 0; block < task.plan.blocks.size(); ++block) count_block(task, block, forecast);
      if (file.wanted < most) continue;
      most = file.wanted;
      main_route = route_taken(route, task);
    }
    stats.path = name_path(stats.bytes_direct, stats.bytes_buffered);
    const auto engine = settings_.make_engine(settings_.depth_per_thread());
    stats.backend = engine == nullptr ? "none" : std::string(engine->name());
    forecast.uses_uring = engine != nullptr && engine->kind() == Backend::kUring;
    forecast.uses_threads = engine != nullptr && engine->kind() == Backend::kThreads;
    forecast.backend_reason = settings_.engine_reason;
    stats.block_size = settings_.block_size;
    stats.queue_depth = settings_.queue_depth;
    stats.threads = settings_.threads;
    describe_landing(main_route, stats);
    const bool left_open = main_route.landing == ReadLanding::kByPage && stats.bytes_direct > 0;
    forecast.may_stage = left_open || stats.bytes_copied > 0;
    if (!left_open) return;
    stats.landing = "in place or staged";  // which, the pages themselves will tell
    if (stats.bytes_buffered <= stats.bytes_direct) stats.reason = describe(main_route.reason);
  }

  const Selection& selection_;
  const std::vector<Placement>& placements_;
  const ReadRequest request_;
  const Settings settings_;
  const std::vector<FileFacts> facts_;
};

// Makes what the threads of a crew would make, all at once, and sees whether the kernel takes it.
void try_staging(const Settings& settings, HostPool& pool, Diagnosis& diagnosis) {
  const unsigned crew_size = std::max(1u, settings.threads);
  const std::size_t each = settings.depth_per_thread() * settings.block_size;
  diagnosis.staging_bytes = crew_size * each;
  std::vector<std::shared_ptr<Arena>> staging;
  std::vector<std::unique_ptr<Engine>> engines;
  for (unsigned i = 0; i < crew_size; ++i) {
    staging.push_back(pool.allocate_staging(each));
    engines.push_back(settings.make_engine(settings.depth_per_thread()));
    const iovec whole{staging.back()->data(), staging.back()->size()};
    if (engines.back() == nullptr || !engines.back()->register_buffers({&whole, 1})) return;
  }
  diagnosis.staging_registered = true;
}

// On top of what was open when the machine was looked at: a second descriptor of every file that is read directly, and
// a ring for every thread.
std::uint64_t files_needed(const Diagnosis& diagnosis, const Settings& settings) {
  std::uint64_t more = settings.threads;
  for (const FileDiagnosis& file : diagnosis.files) more += file.direct || ran_out_of_files(file);
  return diagnosis.machine.open_files + more;
}

}  // namespace

Diagnosis diagnose(const Reader& reader, const LoadOptions& options) {
  const Reader::State& state = ReaderAccess::state(reader);
  const Selection selection = select_tensors(state, options.select);
  Diagnosis diagnosis;
  diagnosis.machine = inspect_machine();  // first: what follows may use up the descriptors that this needs
  const auto pool = host_pool(options.pool);
  std::vector<Placement> placements;
  MemoryFacts fresh;
  for (const FileSelection& file : selection.files) {
    placements.push_back(place_tensors(file.tensors, options.dtype));
    fresh.may_have_huge_pages = fresh.may_have_huge_pages || pool->may_be_huge(placements.back().arena_size);
  }
  const MemoryFacts reused{true, fresh.may_have_huge_pages};
  const std::vector<ByteRange> wanted = wanted_ranges(state, selection);
  for (std::size_t i = 0; i < state.files.size(); ++i) {
    if (state.infos[i].unpacked) continue;
    diagnosis.files.push_back(diagnose_file(*state.files[i], state.infos[i], wanted[i]));
  }
  count_tensors(selection, placements, diagnosis);
  const Planned planned(state, selection, options, placements);
  diagnosis.now = planned.now(fresh, diagnosis);
  const auto in_memory = [](const FileDiagnosis& file) { return file.in_memory; };
  if (!std::all_of(diagnosis.files.begin(), diagnosis.files.end(), in_memory)) {
    diagnosis.cold = planned.cold(fresh, diagnosis);
    diagnosis.cold_reused = planned.cold(reused, diagnosis);
  }
  diagnosis.open_files_needed = files_needed(diagnosis, planned.settings());
  try_staging(planned.settings(), *pool, diagnosis);
  diagnosis.devices = inspect_devices();  // last: the driver opens files of its own
  diagnosis.advice = advise(diagnosis);
  return diagnosis;
}

Diagnosis diagnose(const std::filesystem::path& path, const LoadOptions& options) {
  const Stopwatch watch;
  try {
    const Reader reader(path);
    const double seconds = watch.seconds();
    Diagnosis diagnosis = diagnose(reader, options);
    diagnosis.open_seconds = seconds;
    diagnosis.advice = advise(diagnosis);
    return diagnosis;
  } catch (const Error& error) {
    if (error.error_number() != EMFILE) throw;
    throw Error(
        error.kind(),
        fmt::format("{} (the limit is {}; ulimit -n raises it)", error.what(), inspect_machine().open_files_limit),
        EMFILE);
  }
}

}  // namespace penstock
