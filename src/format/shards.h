// Sharded checkpoints: `NAME.index.json` with {"metadata": {...}, "weight_map": {tensor name: file name}}.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/layout.h"

namespace penstock {

struct ShardIndex {
  std::vector<std::string> files;  // plain file names beside the index, each once, in order of appearance
  std::map<std::string, std::uint32_t> weight_map;  // tensor name -> index into files
  Metadata metadata;                                // values that are not strings are kept as their JSON text
  Metadata json_metadata;                           // for encode_shard_index(): values that are JSON text as they are
};

// Throws Error(kFormat): not JSON, no weight_map, a name listed twice, a file name that is not a plain one.
ShardIndex parse_shard_index(const ByteSource& source);

// JSON text of an index, keys sorted, indented by two spaces, ending in a newline.
std::string encode_shard_index(const ShardIndex& index, std::uint64_t total_size);

// Splits tensors, in the given order, into shards of at most `max_shard_size` bytes of data (a larger tensor gets one
// of its own). Returns the shard of each spec; they count from 0.
std::vector<std::uint32_t> assign_shards(std::span<const TensorSpec> specs, std::uint64_t max_shard_size);

// "model.safetensors", 1, 3 -> "model-00002-of-00003.safetensors". A set that takes the place of another one has a
// higher generation, so that the two have no name in common: "model-g2-00002-of-00003.safetensors".
std::string shard_file_name(std::string_view file_name, std::uint32_t shard, std::uint32_t shard_count,
                            std::uint64_t generation = 1);

// What the names of all shards of one set have in common.
struct ShardSetName {
  std::uint64_t generation = 0;
  std::uint64_t shard_count = 0;
  friend auto operator<=>(const ShardSetName&, const ShardSetName&) = default;
};

// Of a shard of `file_name`; nothing when `shard` is not called as one is.
std::optional<ShardSetName> parse_shard_name(std::string_view file_name, std::string_view shard) noexcept;

// The generation in it, or 0.
std::uint64_t shard_generation(std::string_view file_name, std::string_view shard) noexcept;

// Whether `name` is the file, its index or one of its shards.
bool belongs_to_set(std::string_view file_name, std::string_view name);

// "model.safetensors" -> "model.safetensors.index.json".
inline constexpr std::string_view kIndexSuffix = ".index.json";
std::string index_file_name(std::string_view file_name);

}  // namespace penstock
