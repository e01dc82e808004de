// publish_shards(), publish_single(): from finished files without names to a checkpoint under its name, as one.
//
// The protocol is drawn in docs/formats/sets.md. Of shards: new names that no file has -> durable -> the index is
// renamed into place, which is the commit -> what only the old set needed goes. Of a single file: it is renamed into
// place -> where there was a set of its name, the index is replaced by one that names the new file -> the old shards go
// -> that index goes. Whenever the process is killed, a directory holds the old checkpoint or the new one, whole; what
// else it holds is removed by the next save of that name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/shards.h"
#include "io/new_file.h"

namespace penstock {

struct SetPublication {
  std::filesystem::path path;  // "model.safetensors": of the single file; shards and index are named after it
  bool durable = true;
  // Files that are never removed, as they are what was read. Nor is any other shard of an older set with one of them.
  std::span<const std::filesystem::path> keep = {};
  // For tests: called after each step, with its name.
  std::function<void(std::string_view)> after_step = {};
  // Files in the directory that the shards replace, whether the old index names them or not.
  std::vector<std::string> replaced = {};
};

// Before a save takes any space: what savers of this name left that were killed may fill the drive.
void clear_leftovers_of(const std::filesystem::path& set);

// `index.files` are the shards as they would be called if nothing was there, one for each of `files`; they become what
// they are called now. Shards without a tensor are in no index: their names tell that they are of the set. `index_file`
// is new and empty.
void publish_shards(const SetPublication& publication, std::span<NewFile* const> files, ShardIndex& index,
                    NewFile& index_file, std::uint64_t nbytes);

// `index`: which tensors are in the file.
void publish_single(const SetPublication& publication, NewFile& file, const ShardIndex& index, std::uint64_t nbytes);

// Either of the two: a set has an index file.
void publish_files(const SetPublication& publication, std::span<NewFile* const> files, ShardIndex& index,
                   std::optional<NewFile>& index_file, std::uint64_t nbytes);

}  // namespace penstock
