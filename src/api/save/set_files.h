// The files of a set: which a directory holds, and which an index lists.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "format/set_change.h"

namespace penstock {

// The directory that a file of this path is in.
std::filesystem::path directory_of(const std::filesystem::path& path);

// The file or link that has this name; nothing where none has, or where it is something else.
std::optional<SetEntry> find_entry(int directory, const std::string& name);
// Whether an entry still is what it was.
bool is_there(int directory, const SetEntry& entry);
// Removes those that are. False when one of them could not be removed.
bool remove_entries(int directory, const std::vector<SetEntry>& files);

// The files that an index names: none when there is no index, nothing when it can't be read. What it meant is not
// guessed then.
std::optional<std::vector<std::string>> read_index_files(const std::filesystem::path& index);

// The files that the other indexes beside the one of `set` name: several sets may lie in a directory, and share some.
std::set<std::string> files_of_other_sets(const std::filesystem::path& set);

}  // namespace penstock
