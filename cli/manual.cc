#include "manual.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace penstock::cli {
namespace {

// Names of earlier versions: understood, but not told.
constexpr std::array<std::string_view, 1> kFormerNames = {"filter"};

bool is_former(std::string_view name) {
  return std::find(kFormerNames.begin(), kFormerNames.end(), name) != kFormerNames.end();
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Validators describe themselves behind the type: "KEY:{name,size,offset}".
std::vector<std::string> choices_in(const std::string& type) {
  const std::size_t begin = type.find(":{");
  const std::size_t end = type.find('}', begin);
  return end == std::string::npos ? std::vector<std::string>() : split(type.substr(begin + 2, end - begin - 2), ',');
}

OptionManual describe_option(const CLI::Option& option) {
  OptionManual manual;
  const std::string type = option.get_type_name();
  manual.help = option.get_description();
  manual.choices = choices_in(type);
  manual.is_argument = option.get_positional();
  manual.required = option.get_required();
  manual.many = option.get_expected_max() > 1;
  if (manual.is_argument) {
    manual.names = {option.get_name(true)};
    return manual;
  }
  for (const auto& name : option.get_snames()) manual.names.push_back("-" + name);
  for (const auto& name : option.get_lnames()) {
    if (!is_former(name)) manual.names.push_back("--" + name);
  }
  if (option.get_type_size() != 0) manual.value = type.substr(0, type.find(':'));
  return manual;
}

std::vector<OptionManual> describe_options(const CLI::App& app, bool arguments) {
  std::vector<OptionManual> manuals;
  for (const CLI::Option* option : app.get_options()) {
    const bool hidden = option->get_group().empty();
    if (!hidden && option->get_positional() == arguments) manuals.push_back(describe_option(*option));
  }
  return manuals;
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : full_name(*app.get_parent()) + " " + app.get_name();
}

std::string usage_of(const Manual& manual) {
  if (!manual.commands.empty()) return manual.name + " COMMAND [OPTIONS] ...";
  std::string usage = manual.name;
  for (const OptionManual& argument : manual.arguments) {
    usage += argument.required ? " " + argument.term() : " [" + argument.term() + "]";
  }
  return usage + " [OPTIONS]";
}

void read_footer(const std::string& footer, Manual& manual) {
  bool is_example = true;
  for (const std::string& line : split(footer, '\n')) {
    const std::size_t comment = line.find(" # ");
    if (line.empty()) {
      is_example = false;
    } else if (!is_example) {
      manual.paragraphs.push_back(line);
    } else if (comment == std::string::npos) {
      manual.examples.push_back({line, ""});
    } else {
      manual.examples.push_back({line.substr(0, comment), line.substr(comment + 3)});
    }
  }
}

}  // namespace

std::string OptionManual::term() const {
  const std::string joined = fmt::format("{}", fmt::join(names, ", "));
  if (is_argument) return joined + (many ? "..." : "");
  return value.empty() ? joined : joined + " " + value;
}

Completion OptionManual::completion() const {
  if (!choices.empty()) return Completion::kChoices;
  if (value == "DIR") return Completion::kDirectories;
  return is_argument ? Completion::kFiles : Completion::kNothing;
}

Manual describe(const CLI::App& app) {
  Manual manual;
  manual.name = full_name(app);
  manual.summary = app.get_description();
  manual.arguments = describe_options(app, true);
  manual.options = describe_options(app, false);
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    manual.commands.push_back(describe(*command));
  }
  manual.usage = usage_of(manual);
  read_footer(app.get_footer(), manual);
  return manual;
}

CLI::Validator suggests(const std::vector<std::string>& choices) {
  return {[](std::string&) { return std::string(); }, fmt::format("{{{}}}", fmt::join(choices, ","))};
}

}  // namespace penstock::cli
