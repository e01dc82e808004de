// Other names for the tensors of a conversion. A tensor that --rename names gets exactly the new name; the others lose
// --strip-prefix and get --add-prefix.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/reader.h"

namespace penstock::cli {

struct Renaming {
  std::vector<std::string> renames;  // "OLD=NEW": whole names
  std::string strip_prefix;
  std::string add_prefix;

  bool changes_nothing() const { return renames.empty() && strip_prefix.empty() && add_prefix.empty(); }
};

void add_renaming_options(CLI::App& command, Renaming& renaming);

// Each old name and the prefix that is taken away have to be there. Throws Failure with the nearest names.
void check_renaming(std::span<const TensorInfo> tensors, const Renaming& renaming, const std::string& source);

// For ConvertOptions::rename; nothing where names stay.
std::function<std::string(std::string_view)> rename_function(const Renaming& renaming);

}  // namespace penstock::cli
