// Sweep: finds the best of many settings in little time. All are measured once, in a mixed order; the slow ones drop
// out; those left are measured again, and so on, until a few finalists have several measurements each. Settings that
// are left to the library (the default) never drop out, so that there is something to compare with.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "measurement.h"
#include "penstock/options.h"

namespace penstock::cli {

struct Setting {
  IoOptions io;
  WriteMethod method = WriteMethod::kAuto;
  bool is_default = false;
};

struct SweepEntry {
  Setting setting;
  Measurement measurement;
  std::string how;  // what the library said it used
};

class Sweep {
 public:
  static constexpr std::size_t kFinalists = 5;
  static constexpr std::size_t kMeasurements = 5;  // of each finalist, when there is time

  explicit Sweep(const std::vector<Setting>& settings);

  // `measure` adds one measurement to an entry. `has_time` is asked before each; when it says no, the sweep ends.
  void run(const std::function<void(SweepEntry&)>& measure, const std::function<bool()>& has_time);

  // Those that did not drop out and moved anything, the fastest first.
  std::vector<SweepEntry> ranking() const;

  // True when every setting was measured at least once.
  bool is_complete() const;

 private:
  void drop_slow_ones();

  std::vector<SweepEntry> entries_;
  std::vector<std::size_t> survivors_;  // indices into entries_, in the order they are measured
};

// The settings that `penstock tune` tries: backends x block sizes x depths (x methods), as far as at most 48 MiB are in
// flight. The first one is the default.
std::vector<Setting> read_settings(const std::vector<Backend>& backends);
std::vector<Setting> write_settings();

}  // namespace penstock::cli
