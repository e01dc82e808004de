// What may have been meant by a word that is not there.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

// How many characters have to be added, taken away, replaced or swapped with their neighbour to make `name` out of
// `pattern`. In a glob, * stands for any number of characters and ? for one, at no cost.
std::size_t edit_distance(std::string_view pattern, std::string_view name, bool glob = false);

// "; did you mean 'ls'?" with the name that is near, or nothing when none is.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& names);

// Up to `count` of the names, those that `glob` nearly matches first; equally near ones stay in their order.
std::vector<std::string> nearest_names(std::string_view glob, const std::vector<std::string>& names, std::size_t count);

// "the nearest are 'a', 'b', 'c'", or "there are none" when there are no names at all.
std::string tell_nearest(std::string_view glob, const std::vector<std::string>& names);

}  // namespace penstock::cli
