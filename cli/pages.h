// The manual in the forms that others read: man pages, Markdown, and scripts that complete command lines.
#pragma once

#include <array>
#include <string>
#include <utility>

#include "manual.h"

namespace penstock::cli {

inline constexpr std::array<std::pair<const char*, const char*>, 4> kExitCodes = {{
    {"0", "fine"},
    {"1", "failed: one line on standard error names the file and says why"},
    {"2", "used wrongly: one line on standard error says what to type"},
    {"128 + signal", "interrupted"},
}};

// The page of a command; `all` is the manual that it is part of.
std::string roff_page(const Manual& manual, const Manual& all);

// The same as a section of a document, with a heading of `level` and its commands one below.
std::string markdown_section(const Manual& manual, unsigned level);

// For bash, zsh or fish: completes commands, options, their values and paths.
std::string bash_completion(const Manual& manual);
std::string zsh_completion(const Manual& manual);
std::string fish_completion(const Manual& manual);

}  // namespace penstock::cli
