// ReadSession: the one way in which bytes are read. Loads, streams, slices, checks and measurements all use it.
//
// A session has a crew for as long as it lives, and reads batches: what belongs together, of one file or several. The
// caller says which bytes, on which route and to which destination; the session plans them, keeps the drive busy, and
// counts. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "penstock/options.h"
#include "transfer/progress.h"
#include "transfer/read.h"

namespace penstock {

class ReadSession {
 public:
  ReadSession(Settings settings, StagingFactory staging);
  ReadSession(Settings settings, std::shared_ptr<HostPool> staging)
      : ReadSession(std::move(settings), host_staging(std::move(staging))) {}

  const Settings& settings() const noexcept { return crew_.settings(); }

  // Starts to read. `observe` (optional) sees every piece, each of one segment alone.
  std::shared_ptr<ReadBatch> start(std::vector<FileRead> reads, PieceObserver observe = {});

  // Waits for a batch, as wait_with_progress() does. Throws Error(kChanged) when a file is not what it was.
  static void wait(ReadBatch& batch, const ProgressFunction& progress, std::uint64_t bytes_total,
                   const Stopwatch& watch, const std::function<void()>& meanwhile = {});

  // Throws Error(kChanged) when a file of a batch that has ended is not what it was.
  static void check_unchanged(const ReadBatch& batch);

  // Ends the session, and says in the statistics what it did and why it went that way.
  void finish(Stats& stats);

 private:
  void remember(const FileRead& read, const ReadTask& task);

  Crew crew_;
  // Of the file with the most bytes so far: one route stands for the session.
  ReadRoute main_route_;
  std::uint64_t main_bytes_ = 0;
};

// The route as the plan lets it be taken.
ReadRoute route_taken(const ReadRoute& route, const ReadTask& task);

// "direct", "buffered" or "mixed" for so many bytes of each kind.
std::string_view name_path(std::uint64_t direct, std::uint64_t buffered);

// What the counters say.
void describe_crew(Crew& crew, Stats& stats);

// How bytes landed and why, for statistics that have counted everything and have their path already.
void describe_landing(const ReadRoute& route, Stats& stats);

}  // namespace penstock
