#include "penstock/doctor.h"

#include <algorithm>
#include <cerrno>

#include "api/doctor.h"
#include "api/loading.h"
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
    for (const Placed& placed : placement.tensors) {
      diagnosis.tensors_misaligned += placed.moved;
      diagnosis.bytes_misaligned += placed.moved ? placed.nbytes : 0;
    }
  }
}

// What the crew would count for this block.
void count_block(const ReadTask& task, std::size_t number, Forecast& forecast) {
  Stats& stats = forecast.stats;
  const Block& block = task.plan.blocks[number];
  const Piece* const first = task.plan.pieces.data() + block.first_piece;
  const Piece* const last = first + block.piece_count - 1;
  std::uint64_t payload = 0;
  for (const Piece* piece = first; piece <= last; ++piece) payload += piece->nbytes;
  ++stats.requests;
  if (task.buffered[number]) {
    stats.bytes_buffered += payload;
    stats.bytes_on_device += last->offset + last->nbytes - first->offset;
    if (!task.drop_behind.empty() && task.drop_behind[number]) forecast.bytes_dropped += payload;
  } else {
    stats.bytes_direct += payload;
    stats.bytes_on_device += block.length;
    if (!block.straight) stats.bytes_copied += payload;
  }
}

std::string engine_name(const Settings& settings) {
  const auto engine = settings.make_engine(settings.depth_per_thread());
  return engine == nullptr ? "none" : std::string(engine->name());
}

// Misaligned tensors are there only where a mapping was asked for; they are copied out of it.
void forecast_mapping(const Selection& selection, std::uint64_t bytes_misaligned, Forecast& forecast) {
  forecast.stats.bytes_buffered = bytes_misaligned;
  forecast.stats.bytes_mapped = selection.nbytes - bytes_misaligned;
  forecast.stats.path = "mapped";
  forecast.stats.landing = "mapped";
  forecast.stats.backend = "inline";
  forecast.stats.reason = forecast.mapping;
  forecast.backend_reason = "a mapping has no requests of its own";
}

void forecast_reads(const Selection& selection, const std::vector<FileWants>& wants, TargetMemory memory,
                    const LoadOptions& options, Forecast& forecast) {
  const ReadPlan plan = plan_reads(wants, selection.nbytes, memory, options, options.verify);
  for (const ReadTask& task : plan.tasks) {
    for (std::size_t i = 0; i < task.plan.blocks.size(); ++i) count_block(task, i, forecast);
  }
  Stats& stats = forecast.stats;
  stats.path = name_path(stats.bytes_direct, stats.bytes_buffered);
  stats.backend = engine_name(plan.settings);
  stats.block_size = plan.settings.block_size;
  stats.queue_depth = plan.settings.queue_depth;
  stats.threads = plan.settings.threads;
  describe_landing(plan.landing, plan.buffered_because, stats);
  if (plan.landing.way == LandingWay::kByPage && stats.bytes_direct > 0) {
    stats.landing = "in place or staged";  // which, the pages themselves will tell
    if (stats.path != "buffered") stats.reason = plan.landing.reason;
  }
  forecast.backend_reason = plan.settings.engine_reason;
}

Forecast forecast_load(const Reader::State& state, const Selection& selection, const std::vector<FileWants>& wants, TargetMemory memory,
                       const LoadOptions& options, const Diagnosis& diagnosis) {
  Forecast forecast;
  const MapChoice mapping = choose_mapping(state, selection, options);
  forecast.mapping = mapping.reason;
  forecast.stats.bytes = diagnosis.bytes;
  forecast.stats.tensors = diagnosis.tensors;
  forecast.stats.tensors_moved = diagnosis.tensors_misaligned;
  mapping.map ? forecast_mapping(selection, diagnosis.bytes_misaligned, forecast)
              : forecast_reads(selection, wants, memory, options, forecast);
  return forecast;
}

// Nothing of a file is in the page cache: what is left open there is read directly.
Forecast forecast_cold(const Reader::State& state, const Selection& selection, const std::vector<FileWants>& wants, TargetMemory memory,
                       LoadOptions options, const Diagnosis& diagnosis) {
  const bool open = options.cache == CachePolicy::kAuto;
  if (open) options.cache = CachePolicy::kDirect;
  Forecast forecast = forecast_load(state, selection, wants, memory, options, diagnosis);
  if (open) forecast.mapping = "the page cache holds nothing";
  return forecast;
}

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
  std::vector<FileWants> wants;
  TargetMemory fresh;
  for (const FileSelection& file : selection.files) {
    placements.push_back(place_tensors(file.tensors, options.dtype));
    wants.push_back({file.file, placements.back().segments});
    fresh.may_be_huge = fresh.may_be_huge || pool->may_be_huge(placements.back().arena_size);
  }
  const TargetMemory reused{.hot = true, .may_be_huge = fresh.may_be_huge};
  const std::vector<ByteRange> wanted = wanted_ranges(state, selection);
  for (std::size_t i = 0; i < state.files.size(); ++i) {
    diagnosis.files.push_back(diagnose_file(*state.files[i], state.infos[i], wanted[i]));
  }
  count_tensors(selection, placements, diagnosis);
  diagnosis.now = forecast_load(state, selection, wants, fresh, options, diagnosis);
  const auto in_memory = [](const FileDiagnosis& file) { return file.in_memory; };
  if (!std::all_of(diagnosis.files.begin(), diagnosis.files.end(), in_memory)) {
    diagnosis.cold = forecast_cold(state, selection, wants, fresh, options, diagnosis);
    diagnosis.cold_reused = forecast_cold(state, selection, wants, reused, options, diagnosis);
  }
  const Settings settings = decide_settings(options.io, selection.nbytes);
  diagnosis.open_files_needed = files_needed(diagnosis, settings);
  try_staging(settings, *pool, diagnosis);
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
