// The reference of the command in Markdown.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pages.h"
#include "text.h"

namespace penstock::cli {
namespace {

// Text in a cell of a table.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '<' || c == '*' || c == '_') out += '\\';
    out += c;
  }
  return out;
}

std::string table_of(const char* title, const std::vector<OptionManual>& options) {
  if (options.empty()) return "";
  std::string out = fmt::format("\n| {} | |\n|---|---|\n", title);
  for (const OptionManual& option : options) out += fmt::format("| `{}` | {} |\n", option.term(), cell(option.help));
  return out;
}

std::string table_of(const std::vector<Manual>& commands) {
  if (commands.empty()) return "";
  std::string out = "\n| command | |\n|---|---|\n";
  for (const Manual& command : commands) {
    out += fmt::format("| [`{}`](#{}) | {} |\n", command.short_name(), "penstock-" + command.short_name(),
                       cell(command.summary));
  }
  return out;
}

std::string examples_of(const Manual& manual) {
  std::string out = "\n```sh\n";
  for (const Example& example : manual.examples) {
    out += example.command + (example.explanation.empty() ? "" : "  # " + example.explanation) + "\n";
  }
  return out + "```\n";
}

std::string exit_codes() {
  std::string out = "\n| exit code | |\n|---|---|\n";
  for (const auto& [code, meaning] : kExitCodes) out += fmt::format("| {} | {} |\n", code, cell(meaning));
  return out;
}

}  // namespace

std::string markdown_section(const Manual& manual, unsigned level) {
  std::string out =
      fmt::format("{} {}\n\n{}\n\n```\n{}\n```\n", std::string(level, '#'), manual.name, manual.summary, manual.usage);
  out += table_of(manual.commands) + table_of("argument", manual.arguments) + table_of("option", manual.options);
  if (!manual.commands.empty()) out += exit_codes();
  out += examples_of(manual);
  for (const std::string& paragraph : manual.paragraphs) {
    out += fmt::format("\n{}\n", fmt::join(wrap(paragraph, 118), "\n"));
  }
  for (const Manual& command : manual.commands) out += "\n" + markdown_section(command, level + 1);
  return out;
}

}  // namespace penstock::cli
