// Completion for bash, which has no descriptions: words and files only.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pages.h"

namespace penstock::cli {
namespace {

std::vector<std::string> names_of(const std::vector<OptionManual>& options) {
  std::vector<std::string> names;
  for (const OptionManual& option : options) names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

std::string offer(Completion completion, const std::vector<std::string>& choices) {
  switch (completion) {
    case Completion::kChoices:
      return fmt::format("words='{}'", fmt::join(choices, " "));
    case Completion::kFiles:
      return "kind=files";
    case Completion::kDirectories:
      return "kind=directories";
    case Completion::kNothing:
      break;
  }
  return ":";
}

// What follows an option.
std::string values_of(const Manual& command) {
  std::string out;
  for (const OptionManual& option : command.options) {
    if (option.value.empty()) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : option.names) patterns.push_back(command.short_name() + ":" + name);
    out += fmt::format("    {}) {} ;;\n", fmt::join(patterns, " | "), offer(option.completion(), option.choices));
  }
  return out;
}

}  // namespace

std::string bash_completion(const Manual& manual) {
  std::string values;
  std::string options;
  std::string arguments;
  std::vector<std::string> first = names_of(manual.options);
  for (const Manual& command : manual.commands) {
    const std::string name = command.short_name();
    first.push_back(name);
    values += values_of(command);
    options += fmt::format("        {}) words='{}' ;;\n", name, fmt::join(names_of(command.options), " "));
    if (command.arguments.empty()) continue;
    const OptionManual& argument = command.arguments.front();
    arguments += fmt::format("        {}) {} ;;\n", name, offer(argument.completion(), argument.choices));
  }
  return fmt::format(R"(# Completion of penstock for bash, made by: penstock completion bash
_penstock() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} words='' kind=words
  if [[ $current == '=' ]]; then # bash takes --option=value apart
    current=''
  elif [[ $previous == '=' ]]; then
    previous=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  if ((COMP_CWORD == 1)); then
    words='{}'
  else
    case ${{COMP_WORDS[1]}}:$previous in
{}    *)
      if [[ $current == -* ]]; then
        case ${{COMP_WORDS[1]}} in
{}        esac
      else
        case ${{COMP_WORDS[1]}} in
{}        esac
      fi
      ;;
    esac
  fi
  case $kind in
    files) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    directories) mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    words) mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current") ;;
  esac
  [[ $kind == words ]] || compopt -o filenames 2>/dev/null
  return 0
}}
complete -F _penstock penstock
)",
                     fmt::join(first, " "), values, options, arguments);
}

}  // namespace penstock::cli
