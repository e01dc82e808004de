// Completion for zsh: specifications of _arguments, with descriptions.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pages.h"

namespace penstock::cli {
namespace {

// Inside single quotes, in a place where brackets and colons mean something.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string action_of(const OptionManual& option) {
  switch (option.completion()) {
    case Completion::kChoices:
      return fmt::format("({})", fmt::join(option.choices, " "));
    case Completion::kFiles:
      return "_files";
    case Completion::kDirectories:
      return "_files -/";
    case Completion::kNothing:
      break;
  }
  return " ";
}

// '(-s --summary)'{-s,--summary}'[Totals by dtype]', '*--select[...]:GLOB: '.
std::string specification(const OptionManual& option) {
  const bool several = option.names.size() > 1;
  const std::string names =
      several ? fmt::format("'({})'{{{}}}'", fmt::join(option.names, " "), fmt::join(option.names, ","))
              : fmt::format("'{}{}", option.many ? "*" : "", option.names[0]);
  const std::string value = option.value.empty() ? "" : fmt::format(":{}:{}", escaped(option.value), action_of(option));
  return fmt::format("{}[{}]{}'", names, escaped(option.help), value);
}

std::string argument_specification(const OptionManual& argument) {
  return fmt::format("'*:{}:{}'", escaped(argument.names[0]), action_of(argument));
}

std::string describe_command(const Manual& command) {
  std::string out = fmt::format("        {})\n          _arguments", command.short_name());
  for (const OptionManual& option : command.options) out += " \\\n            " + specification(option);
  // The first argument is told for all: convert's SRC and DST are paths both.
  if (!command.arguments.empty()) out += " \\\n            " + argument_specification(command.arguments.front());
  return out + "\n          ;;\n";
}

}  // namespace

std::string zsh_completion(const Manual& manual) {
  std::string options;
  std::string commands;
  std::string arguments;
  for (const OptionManual& option : manual.options) options += "    " + specification(option) + " \\\n";
  for (const Manual& command : manual.commands) {
    commands += fmt::format("        '{}:{}'\n", command.short_name(), escaped(command.summary));
    arguments += describe_command(command);
  }
  return fmt::format(R"(#compdef penstock
# Completion of penstock for zsh, made by: penstock completion zsh
_penstock() {{
  local context state state_descr line
  typeset -A opt_args
  _arguments -C \
{}    '1:command:->command' \
    '*::argument:->argument'
  case $state in
    command)
      local -a commands=(
{}      )
      _describe -t commands command commands
      ;;
    argument)
      case $words[1] in
{}      esac
      ;;
  esac
}}
# Found in fpath it is called, read by "source" it registers itself.
if [[ $funcstack[1] == _penstock ]]; then
  _penstock "$@"
else
  compdef _penstock penstock
fi
)",
                     options, commands, arguments);
}

}  // namespace penstock::cli
