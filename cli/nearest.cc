#include "nearest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace penstock::cli {
namespace {

// A name of a hostile file may be as long as the file; the beginning tells enough.
constexpr std::size_t kLongest = 200;

}  // namespace

std::size_t edit_distance(std::string_view pattern, std::string_view name, bool glob) {
  pattern = pattern.substr(0, kLongest);
  name = name.substr(0, kLongest);
  // Rows of the table of distances between beginnings: the one before the last, the last and the current.
  std::vector<std::size_t> before(name.size() + 1);
  std::vector<std::size_t> last(name.size() + 1);
  std::vector<std::size_t> row(name.size() + 1);
  for (std::size_t j = 0; j <= name.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= pattern.size(); ++i) {
    const char c = pattern[i - 1];
    const bool any_number = glob && c == '*';
    row[0] = last[0] + (any_number ? 0 : 1);
    for (std::size_t j = 1; j <= name.size(); ++j) {
      if (any_number) {
        row[j] = std::min(last[j], row[j - 1]);
        continue;
      }
      const bool same = c == name[j - 1] || (glob && c == '?');
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && c == name[j - 2] && pattern[i - 2] == name[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last.back();
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& names) {
  if (word.starts_with('-') && word.size() < 4) return "";  // any letter is near any other
  std::string_view nearest;
  std::size_t least = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& name : names) {
    const bool beginning = word.size() > 2 && name.starts_with(word);
    const std::size_t distance = beginning ? 1 : edit_distance(word, name);
    if (distance >= least) continue;
    least = distance;
    nearest = name;
  }
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

std::vector<std::string> nearest_names(std::string_view glob, const std::vector<std::string>& names,
                                       std::size_t count) {
  std::vector<std::pair<std::size_t, std::size_t>> order;  // distance, place
  for (std::size_t i = 0; i < names.size(); ++i) order.emplace_back(edit_distance(glob, names[i], true), i);
  count = std::min(count, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end());
  std::vector<std::string> nearest;
  for (std::size_t i = 0; i < count; ++i) nearest.push_back(names[order[i].second]);
  return nearest;
}

std::string tell_nearest(std::string_view glob, const std::vector<std::string>& names) {
  const std::vector<std::string> nearest = nearest_names(glob, names, 3);
  return nearest.empty() ? "there are none" : fmt::format("the nearest are '{}'", fmt::join(nearest, "', '"));
}

}  // namespace penstock::cli
