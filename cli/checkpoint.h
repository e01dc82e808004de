// Small things that several commands say about a checkpoint.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
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

// Each pattern of --select has to match a tensor: nothing would be a surprise, most likely the pattern is wrong. Throws
// Failure with the names that are nearest; `source` is how the message calls the checkpoint.
void check_selection(std::span<const TensorInfo> tensors, const std::vector<std::string>& globs,
                     const std::string& source);

// Adds --select, and the name that it had.
void add_select_option(CLI::App& command, std::vector<std::string>& globs);

// "direct, staged, uring 2 MiB x 8": how a load or save went about it.
std::string format_path(const Stats& stats);

// What of torch checkpoints is more than data, and was left out; nothing where there is none.
void print_opaque(Console& console, std::span<const OpaqueValue> values);

void write_metadata(JsonWriter& json, const Metadata& metadata);

}  // namespace penstock::cli
