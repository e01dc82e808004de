#include "renaming.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "command.h"
#include "nearest.h"

namespace penstock::cli {
namespace {

std::string old_name(const std::string& rename) {
  return rename.substr(0, rename.find('='));
}

std::vector<std::string> names_in(std::span<const TensorInfo> tensors) {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : tensors) names.push_back(tensor.name);
  return names;
}

}  // namespace

void add_renaming_options(CLI::App& command, Renaming& renaming) {
  const auto check = [](const std::string& text) {
    const std::size_t equals = text.find('=');
    const bool complete = equals != std::string::npos && equals > 0 && equals + 1 < text.size();
    return complete ? std::string() : "'" + text + "' is not OLD=NEW, the name of a tensor and its new one";
  };
  command.add_option("--rename", renaming.renames, "Give the tensor OLD another name (may be repeated)")
      ->type_name("OLD=NEW")
      ->allow_extra_args(false)
      ->check(check);
  command.add_option("--strip-prefix", renaming.strip_prefix, "Take this away from names that begin with it")
      ->type_name("PREFIX");
  command.add_option("--add-prefix", renaming.add_prefix, "Put this before every name")->type_name("PREFIX");
}

void check_renaming(std::span<const TensorInfo> tensors, const Renaming& renaming, const std::string& source) {
  const std::vector<std::string> names = names_in(tensors);
  const auto fail = [&](const std::string& what, const std::string& pattern) {
    throw Failure(fmt::format("{}: {}; {}", source, what, tell_nearest(pattern, names)));
  };
  for (const std::string& rename : renaming.renames) {
    const std::string old = old_name(rename);
    const bool there = std::find(names.begin(), names.end(), old) != names.end();
    if (!there) fail(fmt::format("there is no tensor '{}' to rename", old), old);
  }
  const std::string& prefix = renaming.strip_prefix;
  const bool begins =
      std::any_of(names.begin(), names.end(), [&prefix](const std::string& name) { return name.starts_with(prefix); });
  if (!prefix.empty() && !begins) fail(fmt::format("no name begins with --strip-prefix '{}'", prefix), prefix + "*");
}

std::function<std::string(std::string_view)> rename_function(const Renaming& renaming) {
  if (renaming.changes_nothing()) return {};
  std::map<std::string, std::string, std::less<>> renames;
  for (const std::string& rename : renaming.renames) {
    renames[old_name(rename)] = rename.substr(rename.find('=') + 1);
  }
  return [renames, strip = renaming.strip_prefix, add = renaming.add_prefix](std::string_view name) {
    if (const auto found = renames.find(name); found != renames.end()) return found->second;
    // A name that is nothing but the prefix keeps it: there would be nothing left.
    if (name.size() > strip.size() && name.starts_with(strip)) name.remove_prefix(strip.size());
    return add + std::string(name);
  };
}

}  // namespace penstock::cli
