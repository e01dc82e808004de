// Lines that fit the terminal they are shown on: a path and what is said of it, and sentences. In a pipe, where there
// is no width, each is one line.
#pragma once

#include <string>
#include <string_view>

#include "command.h"

namespace penstock::cli {

// "ok model.safetensors  4 tensors, 56 B": the mark and the details may be missing. Where that is too long the details
// stand below, and the path loses its middle.
void print_headline(Console& console, const std::string& mark, const std::string& path, const std::string& details);

// "  note: the rest of it": `start`, and `text` beside it.
void print_sentence(Console& console, const std::string& start, std::string_view text, Tone tone = Tone::kPlain);

}  // namespace penstock::cli
