// ProgressBar: a live bar with rate and time left on a terminal, a plain line now and then in a pipe, nothing with
// --json. It writes to standard error. The bar is gone when the work is done: what is left to see is the result.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "penstock/options.h"
#include "terminal.h"

namespace penstock::cli {

enum class ProgressMode { kBar, kLines, kNone };

class ProgressBar {
 public:
  // `label` says what is being done: "converting".
  ProgressBar(std::string label, const Terminal& terminal, ProgressMode mode);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // For the library: shows the progress and returns false when the user wants to stop.
  ProgressFunction function();

  // Work that isn't counted in bytes: `fraction` is from 0 to 1, `detail` what is going on.
  void show(double fraction, std::string_view detail);

  void set_label(std::string label) { label_ = std::move(label); }

  // Takes the bar away. The destructor does it too.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  void show_bytes(const Progress& progress);
  bool is_due();
  void draw_bar(double fraction, std::string_view detail);
  std::string bar(double fraction, std::size_t columns) const;

  std::string label_;
  Terminal terminal_;
  ProgressMode mode_;
  Clock::time_point last_shown_;
  bool visible_ = false;
};

}  // namespace penstock::cli
