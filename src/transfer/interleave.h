// Two lists as one, each in its order, evenly mixed.
#pragma once

#include <cstddef>
#include <vector>

namespace penstock {

template <typename T>
std::vector<T> interleave(const std::vector<T>& first, const std::vector<T>& second) {
  std::vector<T> mixed;
  mixed.reserve(first.size() + second.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    mixed.push_back(first[i]);
    // After i + 1 of the first as large a part of the second.
    for (const std::size_t due = (i + 1) * second.size() / first.size(); next < due; ++next) {
      mixed.push_back(second[next]);
    }
  }
  mixed.insert(mixed.end(), second.begin() + static_cast<std::ptrdiff_t>(next), second.end());
  return mixed;
}

}  // namespace penstock
