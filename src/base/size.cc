#include "penstock/size.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

namespace penstock {
namespace {

constexpr std::uint64_t kLimit = std::uint64_t{1} << 63;

bool is_decimal(char c) {
  return c >= '0' && c <= '9';
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

bool same_word(std::string_view text, std::string_view word) {
  if (text.size() != word.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (lower(text[i]) != word[i]) return false;
  }
  return true;
}

// What a unit multiplies by; 0 for text that is not a unit.
std::uint64_t unit_factor(std::string_view unit) {
  if (unit.empty() || same_word(unit, "b")) return 1;
  const auto power = std::string_view("kmgtpe").find(lower(unit.front()));
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = unit.substr(1);
  const std::uint64_t base = same_word(rest, "b") ? 1000 : rest.empty() || same_word(rest, "ib") ? 1024 : 0;
  std::uint64_t factor = 1;
  for (std::size_t i = 0; i <= power; ++i) factor *= base;
  return factor;
}

// The digits at the start, and a point with digits behind it.
std::size_t number_length(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size() && is_decimal(text[length])) ++length;
  if (length == 0 || length + 1 >= text.size() || text[length] != '.' || !is_decimal(text[length + 1])) return length;
  ++length;
  while (length < text.size() && is_decimal(text[length])) ++length;
  return length;
}

std::optional<std::uint64_t> scale_whole(std::string_view digits, std::uint64_t factor) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || number > (kLimit - 1) / factor) return std::nullopt;
  return number * factor;
}

std::optional<std::uint64_t> scale_fraction(std::string_view digits, std::uint64_t factor) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, std::chars_format::fixed);
  const double nbytes = std::round(number * static_cast<double>(factor));
  if (error != std::errc() || factor == 1 || !(nbytes < static_cast<double>(kLimit))) return std::nullopt;
  return static_cast<std::uint64_t>(nbytes);
}

}  // namespace

std::optional<std::uint64_t> parse_size(std::string_view text) noexcept {
  text = trimmed(text);
  const std::string_view digits = text.substr(0, number_length(text));
  const std::uint64_t factor = unit_factor(trimmed(text.substr(digits.size())));
  if (digits.empty() || factor == 0) return std::nullopt;
  return digits.find('.') == std::string_view::npos ? scale_whole(digits, factor) : scale_fraction(digits, factor);
}

std::string format_size(std::uint64_t nbytes) {
  constexpr std::array<std::string_view, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(nbytes);
  std::size_t unit = 0;
  // 1023.95 would be shown as "1024.0": it belongs to the next unit.
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", nbytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace penstock
