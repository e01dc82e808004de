// penstock: the native command. This file parses the arguments, runs the command and turns what went wrong into one
// line on standard error and an exit code: 0 fine, 1 failed, 2 used wrongly, 128 + signal when interrupted.
#include <fmt/format.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <clocale>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
#include "help.h"
#include "interrupt.h"
#include "manual.h"
#include "nearest.h"
#include "penstock/error.h"
#include "penstock/version.h"

namespace penstock::cli {
namespace {

constexpr const char* kFooter =
    "penstock ls model.safetensors # what is in a file\n"
    "penstock convert model/ model.safetensors # join shards\n"
    "penstock convert model/ model.flashpack # to another format\n"
    "penstock verify model.safetensors # is it whole?\n"
    "penstock bench # how fast is this drive, and penstock on it?\n"
    "penstock doctor model/ # which way does a load take, and what would make it faster?\n"
    "\n"
    "penstock COMMAND --help tells more. A path is a file (safetensors, FlashPack or PyTorch's), a directory of shards "
    "or an index.json; the format is known by the bytes, not by the suffix. A SIZE is 4096, 64K, 1.5G or 5GB: K, M, G, "
    "T and KiB, MiB ... are powers of 1024, KB, MB ... of 1000.";

const std::map<std::string, ColorChoice> kColorChoices = {
    {"auto", ColorChoice::kAuto}, {"always", ColorChoice::kAlways}, {"never", ColorChoice::kNever}};

// Known before the arguments are parsed, because --help is answered while they are.
ColorChoice color_choice_in(int argument_count, char** arguments) {
  ColorChoice choice = ColorChoice::kAuto;
  for (int i = 1; i < argument_count; ++i) {
    const std::string argument = arguments[i];
    std::string value;
    if (argument == "--color" && i + 1 < argument_count) value = arguments[i + 1];
    if (argument.starts_with("--color=")) value = argument.substr(8);
    if (const auto found = kColorChoices.find(value); found != kColorChoices.end()) choice = found->second;
  }
  return choice;
}

void add_common_options(CLI::App& command, Console& console) {
  command.add_flag("--json", console.json, "Print one line of JSON instead");
  command.add_flag("-q,--quiet", console.quiet, "No progress");
  const auto ignore = [](const std::string&) {};
  command
      .add_option_function<std::string>("--color", ignore, "Colours: always, never, or auto: on a terminal (default)")
      ->type_name("WHEN")
      ->check(CLI::IsMember(kColorChoices));
}

void define(CLI::App& app, Console& console, Action& action) {
  app.name("penstock");
  app.description("Move model weights between storage and memory at the speed of the drive");
  app.footer(kFooter);
  app.set_help_flag("-h,--help", "Print this");
  app.set_version_flag("--version", fmt::format("penstock {}", version()), "Print the version");
  app.require_subcommand(1);
  app.formatter(std::make_shared<HelpFormatter>(console.terminal));
  add_ls(app, action);
  add_convert(app, action);
  add_seal(app, action);
  add_verify(app, action);
  add_bench(app, action);
  add_doctor(app, action);
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    add_common_options(*command, console);
  add_completion(app, action);
  add_man(app, action);
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    command->set_help_flag("-h,--help", "Print this");
}

std::vector<std::string> names_of(const std::vector<OptionManual>& options) {
  std::vector<std::string> names;
  for (const OptionManual& option : options) names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

// A word where a command has to be, and which is none.
std::optional<std::string> unknown_command(const CLI::App& app, std::string_view word) {
  std::vector<std::string> names;
  for (const Manual& command : describe(app).commands) names.push_back(command.short_name());
  if (word.starts_with('-') || std::find(names.begin(), names.end(), word) != names.end()) return std::nullopt;
  if (word == "tune") {  // a command of version 0.1
    return "tune is part of bench now: penstock bench --settings --dir DIR (see penstock bench --help)";
  }
  return fmt::format("there is no command '{}'{} (see penstock --help)", word, did_you_mean(std::string(word), names));
}

// The command whose arguments were wrong: "penstock convert", or "penstock" when none was named.
std::string command_name(const CLI::App& app) {
  const auto commands = app.get_subcommands();
  return commands.empty() ? app.get_name() : app.get_name() + " " + commands.front()->get_name();
}

// What was typed and isn't there, with what may have been meant; else what the parser says.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const auto commands = app.get_subcommands();
  const Manual manual = describe(commands.empty() ? app : *commands.front());
  for (const std::string& argument : app.remaining(/*recurse=*/true)) {
    if (!argument.starts_with("-")) continue;
    const std::string name = argument.substr(0, argument.find('='));
    return fmt::format("{} has no option '{}'{}", manual.name, name, did_you_mean(name, names_of(manual.options)));
  }
  return error.what();
}

// --help and --version arrive as errors too.
int answer_parse_error(const CLI::App& app, const CLI::ParseError& error, Console& console) {
  if (error.get_exit_code() == kSuccess) {
    const auto commands = app.get_subcommands();
    const CLI::App& asked = commands.empty() ? app : *commands.front();
    const bool version = dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr;
    console.out.write(version ? std::string(error.what()) + "\n" : asked.help());
    console.out.flush();
    return kSuccess;
  }
  console.complain(fmt::format("{} (see {} --help)", explain(app, error), command_name(app)));
  return kUsage;
}

int answer_interrupt(const Console& console) {
  console.complain("interrupted");
  return 128 + interrupted_by();
}

// As a program that never heard of pipes would: killed by SIGPIPE, without a word.
int die_of_closed_pipe() {
  signal(SIGPIPE, SIG_DFL);
  raise(SIGPIPE);
  return kFailure;
}

int run(const Action& action, Console& console) {
  try {
    const int code = action(console);
    console.out.flush();
    return code;
  } catch (const OutputClosed&) {
    return die_of_closed_pipe();
  } catch (const Interrupted&) {
    return answer_interrupt(console);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCancelled && interrupted_by() != 0) return answer_interrupt(console);
    console.complain(error);
    // With an errno behind it, it is not the arguments but what the system makes of them (a target that exists).
    return error.kind() == ErrorKind::kArgument && error.error_number() == 0 ? kUsage : kFailure;
  } catch (const std::bad_alloc&) {
    console.complain("out of memory");
    return kFailure;
  } catch (const std::exception& error) {
    console.complain(error.what());
    return kFailure;
  }
}

// The arguments, where "help ls" asks for what "ls --help" does.
std::vector<std::string> words_of(int argument_count, char** arguments) {
  std::vector<std::string> words(arguments + std::min(argument_count, 1), arguments + argument_count);
  const auto command = std::find_if(words.begin(), words.end(), [](const std::string& word) { return word != "help"; });
  if (command == words.begin()) return words;
  words.erase(words.begin(), command);
  words.emplace_back("--help");
  return words;
}

int parse_and_run(int argument_count, char** arguments) {
  const ColorChoice choice = color_choice_in(argument_count, arguments);
  Console console;
  console.terminal = inspect_terminal(1, choice);
  console.error_terminal = inspect_terminal(2, choice);
  Action action;
  CLI::App app;
  define(app, console, action);
  std::vector<std::string> words = words_of(argument_count, arguments);
  if (words.empty()) {
    Output errors(2);
    errors.write(app.help());
    errors.flush();
    return kUsage;
  }
  if (const auto problem = unknown_command(app, words.front())) {
    console.complain(*problem);
    return kUsage;
  }
  try {
    std::reverse(words.begin(), words.end());  // as the parser takes them
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return run([&](Console&) { return answer_parse_error(app, error, console); }, console);
  }
  return run(action, console);
}

}  // namespace
}  // namespace penstock::cli

int main(int argument_count, char** arguments) {
  std::setlocale(LC_CTYPE, "");
  // A reader of ours that goes away must not end a conversion half way: it is an error of that write, handled there.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a file over the limit of ulimit -f: the same
  penstock::cli::listen_for_interrupts();
  return penstock::cli::parse_and_run(argument_count, arguments);
}
