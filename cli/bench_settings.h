// What `penstock bench --settings` finds out: how fast the drive is with other block sizes, queue depths and threads,
// and whether one combination is faster than the defaults.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "measurement.h"
#include "penstock/options.h"

namespace penstock::cli {

struct Setting {
  IoOptions io;  // all zero: the defaults
  Measurement measurement;
};

struct SettingsTable {
  std::vector<Setting> cells;  // by block size, then depth, then threads; those without time have no measurement
  std::size_t best_cell = 0;
  Setting defaults;
  Setting best;  // the combination of best_cell, measured again

  // True when the slowest run of `best` was faster than the fastest one of the defaults.
  bool best_is_faster() const { return best.measurement.lowest() > defaults.measurement.highest(); }
};

// Every combination once per round, as long as `has_time`. The fastest one and the defaults are then measured again in
// turns, and only these runs are compared: the best of many single runs is often luck.
// `measure` adds one measurement to a setting.
SettingsTable measure_settings(unsigned most_threads, unsigned rounds, const std::function<void(Setting&)>& measure,
                               const std::function<bool()>& has_time);

// "2 MiB x 8 on 2 threads"
std::string format_setting(const IoOptions& io);

// "PENSTOCK_BLOCK_SIZE=2M PENSTOCK_QUEUE_DEPTH=8 PENSTOCK_THREADS=2"
std::string environment_for(const IoOptions& io);

// What to read and where to write.
struct SettingsTask {
  std::string name;  // for the output
  std::filesystem::path file;
  std::uint64_t bytes = 0;
  std::optional<std::filesystem::path> scratch;  // nothing: only reads are measured
  std::optional<unsigned> rounds;                // nothing: as many as a minute allows, up to three
  std::vector<std::string> notes;
};

// Measures reads and writes and prints a table of each, and what to set if that helps.
void run_settings(Console& console, const SettingsTask& task, ProgressBar& bar);

}  // namespace penstock::cli
