// Which format a file is in, and which a new one gets: "safetensors", "flashpack", "torch", "torch-legacy".
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "penstock/export.h"

namespace PENSTOCK_EXPORT penstock {

// By the file's bytes; nothing when they look like no format that can be read. That a file looks like one does not say
// that it is sound. Throws Error when it can't be opened.
std::optional<std::string> detect_format(const std::filesystem::path& path);

// By the suffix of a path, whether there is such a file or not; nothing when it stands for no format.
std::optional<std::string> format_for_suffix(const std::filesystem::path& path);

}  // namespace penstock
