// Completion for fish: a line for each thing that can be completed.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pages.h"

namespace penstock::cli {
namespace {

std::string in_quotes(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

// Where an option or an argument belongs: "-n '__fish_seen_subcommand_from ls'".
std::string line(const std::string& condition, const std::string& rest) {
  return fmt::format("complete -c penstock -n {} {}\n", in_quotes(condition), rest);
}

std::string names_of(const OptionManual& option) {
  std::string out;
  for (const std::string& name : option.names) {
    out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  return out.substr(1);
}

std::string values_of(const OptionManual& option) {
  switch (option.completion()) {
    case Completion::kChoices:
      return fmt::format("-a {}", in_quotes(fmt::format("{}", fmt::join(option.choices, " "))));
    case Completion::kFiles:
      return "-F";
    case Completion::kDirectories:
      return "-a '(__fish_complete_directories)'";
    case Completion::kNothing:
      break;
  }
  return "";
}

std::string option_line(const std::string& condition, const OptionManual& option) {
  std::string rest = names_of(option) + " -d " + in_quotes(option.help);
  if (!option.value.empty()) rest += " -x " + values_of(option);
  while (rest.ends_with(' ')) rest.pop_back();
  return line(condition, rest);
}

}  // namespace

std::string fish_completion(const Manual& manual) {
  const std::string first = "__fish_use_subcommand";
  std::string out = "# Completion of penstock for fish, made by: penstock completion fish\ncomplete -c penstock -f\n";
  for (const OptionManual& option : manual.options) out += option_line(first, option);
  for (const Manual& command : manual.commands) {
    const std::string name = command.short_name();
    const std::string within = "__fish_seen_subcommand_from " + name;
    out += line(first, fmt::format("-a {} -d {}", name, in_quotes(command.summary)));
    for (const OptionManual& option : command.options) out += option_line(within, option);
    if (!command.arguments.empty()) out += line(within, values_of(command.arguments.front()));
  }
  return out;
}

}  // namespace penstock::cli
