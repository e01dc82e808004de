// SetContent: the files that a save makes, and which tensor goes into which.
#pragma once

#include <filesystem>
#include <vector>

#include "api/save/file_layout.h"
#include "api/save/writer_state.h"
#include "format/shards.h"

namespace penstock {

struct SetContent {
  std::vector<FileContent> files;  // their origins give whole elements
  ShardIndex index;                // the files as they are called if nothing was there
};

// One file, or the shards that SaveOptions::max_shard_size asks for. Throws Error(kArgument) when a name was added
// twice.
SetContent assign_to_files(const Writer::State& state);

// Of the index that a set of several files has.
std::filesystem::path index_path_of(const Writer::State& state);

}  // namespace penstock
