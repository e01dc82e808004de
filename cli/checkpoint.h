// Small things that several commands say about a checkpoint.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"
#include "penstock/options.h"
#include "penstock/reader.h"

namespace penstock::cli {

// "[4096, 11008]", "[]" for a scalar.
std::string format_shape(std::span<const std::int64_t> shape);

// How many numbers a tensor holds.
std::uint64_t element_count(const TensorInfo& tensor);

std::uint64_t total_file_size(const Reader& reader);

// Of its files, which have the same one: "safetensors", "flashpack".
std::string format_of(const Reader& reader);

// "safetensors", or "safetensors, 3 files".
std::string format_kind(const Reader& reader);

// True when there are no patterns or one of them matches the whole name; * matches dots too.
bool matches_any(const std::vector<std::string>& globs, const std::string& name);

// "direct, staged, uring 2 MiB x 8": how a load or save went about it.
std::string format_path(const Stats& stats);

void write_metadata(JsonWriter& json, const Metadata& metadata);

}  // namespace penstock::cli
