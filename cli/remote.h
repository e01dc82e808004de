// Paths that are none: URLs and the names of models on the Hugging Face hub, and what to type to get at them.
#pragma once

#include <string>
#include <string_view>

namespace penstock::cli {

enum class PathUse { kRead, kWritten };

// What to add to the message about a path that was not found; nothing when it looks like a path. Python says the same
// (python/penstock/_paths.py), with calls where these are commands.
std::string remote_hint(std::string_view path, PathUse use);

}  // namespace penstock::cli
