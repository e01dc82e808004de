#include "units.h"

#include <fmt/format.h>

#include <cmath>

namespace penstock::cli {

std::string format_round_size(std::uint64_t nbytes) {
  std::string text = format_size(nbytes);
  const auto decimal = text.find(".0 ");
  if (decimal != std::string::npos && parse_size(text) == nbytes) text.erase(decimal, 2);
  return text;
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
