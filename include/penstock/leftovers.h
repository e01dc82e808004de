// What savers that were killed have left in a directory: files and directories with hidden names, shards that no index
// lists. They are known by the locks that a saver holds while it lives, never by their age (docs/formats/sets.md).
#pragma once

#include <filesystem>
#include <vector>

#include "penstock/export.h"

namespace PENSTOCK_EXPORT penstock {

struct Leftover {
  std::filesystem::path path;
  bool restored = false;  // a directory that was put aside and never replaced: it has its name again. Else: removed
};

// Removes them, and returns what is gone. What a live saver is at work on stays, and so does all that no saver made.
// Not for a directory that other machines save into over a network on which locks are not shared. Throws Error when
// the directory can't be opened.
std::vector<Leftover> remove_leftovers(const std::filesystem::path& directory);

}  // namespace penstock
