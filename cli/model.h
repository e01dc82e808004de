// A model made up for measuring: the names and proportions of a transformer, BF16, filled with noise that no drive can
// compress away. Every value is finite.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "penstock/options.h"

namespace penstock::cli {

// Writes about `nbytes` of tensors to `path` in a format ("safetensors"), durably. Throws Error.
Stats make_model(const std::filesystem::path& path, const std::string& format, std::uint64_t nbytes,
                 const ProgressFunction& progress);

}  // namespace penstock::cli
