#include "units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace penstock::cli {
namespace {

constexpr std::array<std::string_view, 7> kBinaryUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

struct Scaled {
  double value;
  std::string_view unit;
};

Scaled scale(std::uint64_t nbytes) {
  auto value = static_cast<double>(nbytes);
  std::size_t unit = 0;
  // 1023.95 would be shown as "1024.0": it belongs to the next unit.
  while (value >= 1023.95 && unit + 1 < kBinaryUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return {value, kBinaryUnits[unit]};
}

}  // namespace

std::string format_size(std::uint64_t nbytes) {
  const Scaled scaled = scale(nbytes);
  return scaled.unit == "B" ? fmt::format("{} B", nbytes) : fmt::format("{:.1f} {}", scaled.value, scaled.unit);
}

std::string format_round_size(std::uint64_t nbytes) {
  const Scaled scaled = scale(nbytes);
  if (scaled.value != std::floor(scaled.value)) return format_size(nbytes);
  return fmt::format("{:.0f} {}", scaled.value, scaled.unit);
}

double gib_per_second(std::uint64_t nbytes, double seconds) {
  return seconds > 0 ? static_cast<double>(nbytes) / static_cast<double>(kGiB) / seconds : 0;
}

std::string format_rate(std::uint64_t nbytes, double seconds) {
  return fmt::format("{:.2f} GiB/s", gib_per_second(nbytes, seconds));
}

std::string format_count(std::uint64_t count) {
  const std::string digits = std::to_string(count);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string format_count_of(std::uint64_t count, std::string_view singular) {
  return fmt::format("{} {}{}", format_count(count), singular, count == 1 ? "" : "s");
}

std::string format_seconds(double seconds) {
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1000);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  return format_clock(seconds);
}

std::string format_clock(double seconds) {
  const auto whole = static_cast<std::uint64_t>(std::max(0.0, std::ceil(seconds)));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace penstock::cli
