#include "transfer/load.h"

#include "base/bytes.h"
#include "base/error.h"

namespace penstock {
namespace {

ByteRange hull(std::span<const Segment> segments) {
  return segments.empty() ? ByteRange{} : ByteRange{segments.front().offset, segments.back().end()};
}

PlanOptions plan_options(const File* direct, const ReadPolicy& policy, std::uint64_t block_size) {
  PlanOptions options;
  options.block_size = block_size;
  options.alignment = direct != nullptr ? direct->direct().alignment.offset : 1;
  options.memory_alignment = direct != nullptr ? direct->direct().alignment.memory : 1;
  options.allow_straight =
      policy.landing == LandingWay::kByPage || (policy.landing == LandingWay::kInPlace && direct != nullptr);
  if (policy.landing == LandingWay::kByPage) options.straight_granule = kHugePage;
  return options;
}

// Per block: is it wholly in the page cache?
std::vector<bool> resident_blocks(const File& file, const Plan& plan) {
  std::vector<bool> resident;
  for (const Block& block : plan.blocks) {
    const Piece& first = plan.pieces[block.first_piece];
    const Piece& last = plan.pieces[block.first_piece + block.piece_count - 1];
    const ByteRange range{first.offset, last.offset + last.nbytes};
    resident.push_back(file.resident_bytes(range) == range.size());
  }
  return resident;
}

}  // namespace

// A page or two of the other kind (a header's, say) do not make a path mixed.
const char* name_path(std::uint64_t direct, std::uint64_t buffered) {
  const std::uint64_t negligible = (direct + buffered) / 100;
  if (buffered <= negligible) return "direct";
  return direct <= negligible ? "buffered" : "mixed";
}

ReadTask plan_file(const FileWants& wants, const ReadPolicy& policy, std::uint64_t block_size) {
  ReadTask task;
  task.file = wants.file;
  task.by_page = policy.landing == LandingWay::kByPage;
  const File& file = *wants.file;
  const std::vector<Segment> segments = coalesce(wants.segments, policy.keep_owners);
  const ByteRange range = hull(segments);
  const std::uint64_t resident = policy.cache == CachePolicy::kAuto || policy.cache == CachePolicy::kCopy ? file.resident_bytes(range) : 0;
  const bool buffered = policy.cache == CachePolicy::kBuffered || (resident > 0 && resident == range.size());
  const bool direct = !buffered && static_cast<bool>(file.direct().fd);
  task.plan = plan_blocks(segments, plan_options(direct ? &file : nullptr, policy, block_size));
  task.buffered.assign(task.plan.blocks.size(), !direct);
  if (!direct) file.set_read_ahead(true);
  if (direct && resident > 0) task.buffered = resident_blocks(file, task.plan);
  if (!direct && !buffered) {
    // The promise to leave no page cache behind, kept the other way. What others had cached stays.
    task.drop_behind = resident_blocks(file, task.plan);
    task.drop_behind.flip();
  }
  return task;
}

void wait_with_progress(Batch& batch, const ProgressFunction& progress, std::uint64_t bytes_total,
                        const Stopwatch& watch, const std::function<void()>& meanwhile) {
  bool cancelled = false;
  const auto report = [&] {
    if (!progress || cancelled) return;
    if (progress({batch.bytes_done(), bytes_total, watch.seconds()})) return;
    cancelled = true;
    batch.abandon();
  };
  try {
    if (meanwhile) meanwhile();
    while (!batch.wait_for(kProgressSeconds)) report();
    if (!cancelled) batch.rethrow();
    report();
  } catch (...) {
    batch.abandon();
    while (!batch.wait_for(1)) continue;
    throw;
  }
  if (cancelled) throw Error(ErrorKind::kCancelled, "cancelled");
}

void check_unchanged(std::span<const ReadTask> tasks) {
  for (const ReadTask& task : tasks) task.file->check_unchanged();
}

void describe(Crew& crew, const Settings& settings, Stats& stats) {
  const Counters& counters = crew.counters();
  stats.requests += counters.requests;
  stats.resumed += counters.resumed;
  stats.bytes_direct += counters.bytes_direct;
  stats.bytes_buffered += counters.bytes_buffered;
  stats.bytes_copied += counters.bytes_copied;
  stats.bytes_on_device += counters.bytes_on_device;
  stats.backend = crew.backend();
  stats.block_size = settings.block_size;
  stats.queue_depth = settings.queue_depth;
  stats.threads = settings.threads;
  stats.path = name_path(stats.bytes_direct, stats.bytes_buffered);
}

}  // namespace penstock
