#include "help.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "text.h"

namespace penstock::cli {
namespace {

struct Entry {
  std::string term;
  std::string text;  // may have several lines
};

// "-s, --summary", "--sort name|size|offset", "PATH..."
std::string term_of(const CLI::Option& option) {
  const bool many = option.get_expected_max() > 1;
  if (option.get_positional()) return option.get_name(true) + (many ? "..." : "");
  std::string names;
  for (const auto& name : option.get_snames()) names += (names.empty() ? "-" : ", -") + name;
  for (const auto& name : option.get_lnames()) names += (names.empty() ? "--" : ", --") + name;
  if (option.get_type_size() == 0) return names;
  const std::string type = option.get_type_name();
  return names + " " + type.substr(0, type.find(':'));  // what follows is how a validator describes itself
}

std::vector<Entry> entries_of(const CLI::App& app, bool positional) {
  std::vector<Entry> entries;
  const auto wanted = [positional](const CLI::Option* option) {
    return option->get_positional() == positional && !option->get_group().empty();
  };
  for (const CLI::Option* option : app.get_options(wanted)) {
    entries.push_back({term_of(*option), option->get_description()});
  }
  return entries;
}

std::vector<Entry> commands_of(const CLI::App& app) {
  std::vector<Entry> entries;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    entries.push_back({command->get_name(), command->get_description()});
  }
  return entries;
}

std::size_t widest(const std::vector<Entry>& entries, std::size_t width) {
  for (const Entry& entry : entries) width = std::max(width, display_width(entry.term));
  return width;
}

std::string listed(const std::vector<Entry>& entries, std::size_t width, const Terminal& terminal) {
  std::string out;
  for (const Entry& entry : entries) {
    out += "  " + terminal.paint(Tone::kAccent, entry.term) + std::string(width - display_width(entry.term) + 2, ' ');
    for (const char c : entry.text) {
      out += c;
      if (c == '\n') out += std::string(width + 4, ' ');
    }
    out += '\n';
  }
  return out;
}

std::string usage_of(const CLI::App& app, bool has_commands) {
  std::string usage = app.get_name();
  for (const CLI::App* parent = app.get_parent(); parent != nullptr; parent = parent->get_parent()) {
    usage = parent->get_name() + " " + usage;
  }
  if (has_commands) return usage + " COMMAND [OPTIONS] ...";
  for (const CLI::Option* option : app.get_options([](const CLI::Option* o) { return o->get_positional(); })) {
    const std::string term = term_of(*option);
    usage += option->get_required() ? " " + term : " [" + term + "]";
  }
  return usage + " [OPTIONS]";
}

}  // namespace

std::string HelpFormatter::heading(const std::string& title) const {
  return "\n" + terminal_.paint(Tone::kBold, title) + "\n";
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string, CLI::AppFormatMode) const {
  const std::vector<Entry> arguments = entries_of(*app, true);
  const std::vector<Entry> options = entries_of(*app, false);
  const std::vector<Entry> commands = commands_of(*app);
  const std::size_t width = widest(commands, widest(options, widest(arguments, 0)));
  std::string out = app->get_description() + "\n";
  out += heading("Usage") + "  " + usage_of(*app, !commands.empty()) + "\n";
  if (!commands.empty()) out += heading("Commands") + listed(commands, width, terminal_);
  if (!arguments.empty()) out += heading("Arguments") + listed(arguments, width, terminal_);
  if (!options.empty()) out += heading("Options") + listed(options, width, terminal_);
  const std::string footer = app->get_footer();
  const std::size_t title_end = footer.find('\n');
  return out + heading(footer.substr(0, title_end)) + footer.substr(title_end + 1) + "\n";
}

}  // namespace penstock::cli
