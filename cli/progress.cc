#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "interrupt.h"
#include "text.h"
#include "units.h"

namespace penstock::cli {
namespace {

constexpr std::chrono::milliseconds kBetweenDraws{50};
constexpr std::chrono::seconds kBetweenLines{5};

// Nobody may be reading: a failed write of progress is no failure of the work.
void write_to_stderr(std::string_view text) {
  [[maybe_unused]] const auto ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

std::string repeated(std::string_view text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

double fraction_of(const Progress& progress) {
  if (progress.bytes_total == 0) return 1;
  return std::min(1.0, static_cast<double>(progress.bytes_done) / static_cast<double>(progress.bytes_total));
}

std::string time_left(const Progress& progress) {
  if (progress.bytes_done == 0 || progress.seconds < 0.5) return "-:--";
  const auto rest = static_cast<double>(progress.bytes_total - std::min(progress.bytes_done, progress.bytes_total));
  return format_clock(rest * progress.seconds / static_cast<double>(progress.bytes_done));
}

}  // namespace

ProgressBar::ProgressBar(std::string label, const Terminal& terminal, ProgressMode mode)
    : label_(std::move(label)), terminal_(terminal), mode_(mode), last_shown_(Clock::now()) {}

ProgressBar::~ProgressBar() {
  finish();
}

ProgressFunction ProgressBar::function() {
  return [this](const Progress& progress) {
    show_bytes(progress);
    return interrupted_by() == 0;
  };
}

void ProgressBar::show_bytes(const Progress& progress) {
  if (mode_ == ProgressMode::kNone || !is_due()) return;
  const double fraction = fraction_of(progress);
  const std::string done = format_size(progress.bytes_done);
  const std::string total = format_size(progress.bytes_total);
  const std::string rate = format_rate(progress.bytes_done, progress.seconds);
  if (mode_ == ProgressMode::kBar) {
    draw_bar(fraction, fmt::format("{:>9} of {}  {:>11}  {} left", done, total, rate, time_left(progress)));
  } else {
    write_to_stderr(fmt::format("{}: {:.0f}%, {} of {}, {}, {} left\n", label_, std::floor(fraction * 100), done, total,
                                rate, time_left(progress)));
  }
}

void ProgressBar::show(double fraction, std::string_view detail) {
  if (mode_ == ProgressMode::kNone || !is_due()) return;
  fraction = std::clamp(fraction, 0.0, 1.0);
  if (mode_ == ProgressMode::kBar) {
    draw_bar(fraction, detail);
  } else {
    write_to_stderr(fmt::format("{}: {:.0f}%, {}\n", label_, std::floor(fraction * 100), detail));
  }
}

bool ProgressBar::is_due() {
  const Clock::time_point now = Clock::now();
  const auto interval = mode_ == ProgressMode::kBar ? Clock::duration(kBetweenDraws) : Clock::duration(kBetweenLines);
  if (now - last_shown_ < interval) return false;
  last_shown_ = now;
  return true;
}

void ProgressBar::draw_bar(double fraction, std::string_view detail) {
  const std::string percent = fmt::format("{:3.0f}%", std::floor(fraction * 100));
  const std::size_t others = display_width(label_) + percent.size() + display_width(detail) + 2 + 2 + 1 + 2 + 1;
  // On a narrow terminal the bar goes first, then the details.
  const std::size_t columns = terminal_.width > others + 6 ? std::min<std::size_t>(terminal_.width - others, 36) : 0;
  const bool fits = others <= terminal_.width;
  std::string line = "\r\x1b[K  " + terminal_.paint(Tone::kBold, label_) + "  ";
  if (columns > 0) line += bar(fraction, columns) + " ";
  line += percent;
  if (fits) line += "  " + terminal_.paint(Tone::kDim, detail);
  write_to_stderr(line);
  visible_ = true;
}

std::string ProgressBar::bar(double fraction, std::size_t columns) const {
  const auto halves = static_cast<std::size_t>(fraction * static_cast<double>(columns) * 2);
  const std::size_t full = std::min(halves / 2, columns);
  const bool half = halves % 2 == 1 && full < columns;
  const std::size_t empty = columns - full - (half ? 1 : 0);
  if (!terminal_.unicode) return fmt::format("[{}{}]", repeated("#", full), repeated("-", columns - full));
  return terminal_.paint(Tone::kAccent, repeated("━", full) + (half ? "╸" : "")) +
         terminal_.paint(Tone::kDim, repeated("─", empty));
}

void ProgressBar::finish() {
  if (visible_) write_to_stderr("\r\x1b[K");
  visible_ = false;
}

}  // namespace penstock::cli
