#include "units.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
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

std::string lower_case_without_spaces(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

// What a unit multiplies by; nothing for text that is not a unit.
std::optional<double> unit_factor(std::string_view unit) {
  if (unit.empty() || unit == "b") return 1.0;
  const auto power = std::string_view("kmgtpe").find(unit.front());
  if (power == std::string_view::npos) return std::nullopt;
  const std::string_view rest = unit.substr(1);
  if (rest == "b") return std::pow(1000.0, static_cast<double>(power + 1));
  if (rest.empty() || rest == "ib") return std::pow(1024.0, static_cast<double>(power + 1));
  return std::nullopt;
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

std::optional<std::uint64_t> parse_size(std::string_view text) {
  const std::string plain = lower_case_without_spaces(text);
  const char* const end = plain.data() + plain.size();
  if (plain.empty() || std::isdigit(static_cast<unsigned char>(plain.front())) == 0) return std::nullopt;
  double number = 0;
  const auto [rest, error] = std::from_chars(plain.data(), end, number, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  const auto factor = unit_factor(std::string_view(rest, static_cast<std::size_t>(end - rest)));
  if (!factor) return std::nullopt;
  const double nbytes = number * *factor;
  if (!(nbytes < 9.2e18)) return std::nullopt;
  return static_cast<std::uint64_t>(std::llround(nbytes));
}

}  // namespace penstock::cli
