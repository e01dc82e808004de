#include "transfer/session.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/page.h"

namespace penstock {
namespace {

// What came of landing by page. A block or two of the other kind, at the edges of a run, make nothing mixed.
void describe_pages(Stats& stats) {
  const std::uint64_t negligible = stats.bytes_direct / 100 + std::min(2 * kHugePage, stats.bytes_direct / 4);
  if (stats.bytes_copied <= negligible) {
    stats.landing = "in place";
    stats.reason = "the destination has huge pages, so bytes land in place";
  } else if (stats.bytes_direct - stats.bytes_copied <= negligible) {
    stats.landing = "staged";
    stats.reason =
        "huge pages did not come quickly, so threads copy bytes to small ones and take their page faults in parallel";
  } else {
    stats.landing = "mixed";
    stats.reason =
        "bytes land in place on huge pages; at the edges of runs, and where those did not come quickly, threads copy "
        "them";
  }
}

std::string_view describe_buffered(ReadPath path) {
  switch (path) {
    case ReadPath::kBuffered:
      return "reads through the page cache were asked for";
    case ReadPath::kDropBehind:
      return "direct I/O is refused here, so bytes pass through the page cache and leave it again";
    default:
      return "the bytes came from the page cache";
  }
}

bool has_straight_read(const ReadTask& task) {
  for (std::size_t i = 0; i < task.plan.blocks.size(); ++i) {
    if (task.plan.blocks[i].straight && !task.buffered[i]) return true;
  }
  return false;
}

}  // namespace

ReadSession::ReadSession(Settings settings, StagingFactory staging) : crew_(std::move(settings), std::move(staging)) {}

std::shared_ptr<ReadBatch> ReadSession::start(std::vector<FileRead> reads, PieceObserver observe) {
  auto batch = std::make_shared<ReadBatch>();
  for (const FileRead& read : reads) {
    batch->tasks.push_back(
        plan_read(read, static_cast<bool>(observe), settings().block_size, settings().gds_block_size));
    remember(read, batch->tasks.back());
  }
  batch->observe = std::move(observe);
  start_reading(crew_, batch);
  return batch;
}

void ReadSession::remember(const FileRead& read, const ReadTask& task) {
  std::uint64_t nbytes = 0;
  for (const Segment& segment : read.segments) nbytes += segment.nbytes;
  if (nbytes < main_bytes_) return;
  main_bytes_ = nbytes;
  main_route_ = route_taken(read.route, task);
}

void ReadSession::wait(ReadBatch& batch, const ProgressFunction& progress, std::uint64_t bytes_total,
                       const Stopwatch& watch, const std::function<void()>& meanwhile) {
  wait_with_progress(batch, progress, bytes_total, watch, meanwhile);
  check_unchanged(batch);
}

void ReadSession::check_unchanged(const ReadBatch& batch) {
  for (const ReadTask& task : batch.tasks) task.file->check_unchanged();
}

void ReadSession::finish(Stats& stats) {
  crew_.stop();  // its threads have counted everything once they are gone
  describe_crew(crew_, stats);
  describe_landing(main_route_, stats);
}

// Tensors that are converted, misaligned or small leave no page to choose.
ReadRoute route_taken(const ReadRoute& route, const ReadTask& task) {
  const bool may_stage = route.landing == ReadLanding::kByPage || route.reason == LandingReason::kDirectStorage;
  if (!may_stage || has_straight_read(task)) return route;
  return {route.path, ReadLanding::kStaged, route.if_staged};
}

// A page or two of the other kind (a header's, say) do not make a path mixed.
std::string_view name_path(std::uint64_t direct, std::uint64_t buffered) {
  const std::uint64_t negligible = (direct + buffered) / 100;
  if (buffered <= negligible) return "direct";
  return direct <= negligible ? "buffered" : "mixed";
}

void describe_crew(Crew& crew, Stats& stats) {
  const Counters& counters = crew.counters();
  stats.requests += counters.requests;
  stats.resumed += counters.resumed;
  stats.bytes_direct += counters.bytes_direct;
  stats.bytes_buffered += counters.bytes_buffered;
  stats.bytes_copied += counters.bytes_copied;
  stats.bytes_on_drive += counters.bytes_on_drive;
  stats.bytes_gds += counters.bytes_gds;
  stats.backend = crew.backend();
  stats.block_size = crew.settings().block_size;
  stats.queue_depth = crew.settings().queue_depth;
  stats.threads = crew.settings().threads;
  stats.path = name_path(stats.bytes_direct, stats.bytes_buffered);
}

void describe_landing(const ReadRoute& route, Stats& stats) {
  stats.reason = describe(route.reason);
  if (stats.bytes_direct == 0) {
    stats.landing = "copied";
  } else if (route.landing == ReadLanding::kByPage) {
    describe_pages(stats);
  } else {
    stats.landing = route.landing == ReadLanding::kInPlace ? "in place" : "staged";
  }
  const std::uint64_t negligible = (stats.bytes_direct + stats.bytes_buffered) / 100;
  if (stats.bytes_direct <= negligible && stats.bytes_buffered > negligible) {
    stats.reason = describe_buffered(route.path);
  }
}

}  // namespace penstock
