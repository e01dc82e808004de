// penstock man and penstock completion: what the command says about itself, for programs that show it.
#include <algorithm>
#include <map>

#include "command.h"
#include "pages.h"

namespace penstock::cli {
namespace {

constexpr const char* kManFooter =
    "penstock man ls | man -l - # read a page\n"
    "penstock man convert >penstock-convert.1\n"
    "penstock man --format markdown # a reference of all commands";

constexpr const char* kCompletionFooter =
    "penstock completion bash >~/.local/share/bash-completion/completions/penstock\n"
    "penstock completion zsh >~/.zfunc/_penstock # in a directory of $fpath\n"
    "penstock completion fish >~/.config/fish/completions/penstock.fish\n"
    "\n"
    "Packages put these where the shells look for them. To try one: source <(penstock completion bash).";

using Script = std::string (*)(const Manual&);
const std::map<std::string, Script> kScripts = {
    {"bash", bash_completion}, {"fish", fish_completion}, {"zsh", zsh_completion}};

std::vector<std::string> names_of_commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

struct ManOptions {
  std::string command;
  std::string format = "roff";
};

int print_page(Console& console, const CLI::App& app, const ManOptions& options) {
  const Manual all = describe(app);
  const auto wanted = std::find_if(all.commands.begin(), all.commands.end(), [&options](const Manual& command) {
    return command.short_name() == options.command;
  });
  const Manual& manual = wanted == all.commands.end() ? all : *wanted;
  console.out.write(options.format == "roff" ? roff_page(manual, all) : markdown_section(manual, 1));
  return kSuccess;
}

}  // namespace

void add_man(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand("man", "Print a manual page");
  command->footer(kManFooter);
  const auto options = std::make_shared<ManOptions>();
  std::vector<std::string> names = names_of_commands(app);  // "man" is one of them by now
  command->add_option("COMMAND", options->command, "The command that it is about; without, penstock itself")
      ->check(CLI::IsMember(std::move(names)));
  command->add_option("--format", options->format, "roff, for man (default), or markdown")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"roff", "markdown"}));
  command->callback([&app, options, &action] {
    action = [&app, options](Console& console) { return print_page(console, app, *options); };
  });
}

void add_completion(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand("completion", "Print a script that completes command lines");
  command->footer(kCompletionFooter);
  const auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember(kScripts));
  command->callback([&app, shell, &action] {
    action = [&app, shell](Console& console) {
      console.out.write(kScripts.at(*shell)(describe(app)));
      return kSuccess;
    };
  });
}

}  // namespace penstock::cli
