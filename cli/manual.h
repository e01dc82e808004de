// What the definitions of the commands say, as data. --help, the man pages, the reference in Markdown and the
// completions of shells are all made from it, so that they can't disagree.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace penstock::cli {

// What a shell can complete the value of an option or an argument with.
enum class Completion { kNothing, kFiles, kDirectories, kChoices };

struct OptionManual {
  std::vector<std::string> names;    // "-s", "--summary"; of an argument its one name, "PATH"
  std::string value;                 // what follows the name: "KEY"; nothing for flags and arguments
  std::string help;                  // one line
  std::vector<std::string> choices;  // where the values are few
  bool is_argument = false;
  bool required = false;
  bool many = false;

  // "-s, --summary", "--sort KEY", "PATH..."
  std::string term() const;
  Completion completion() const;
};

struct Example {
  std::string command;
  std::string explanation;  // may be missing
};

struct Manual {
  std::string name;  // "penstock ls"
  std::string summary;
  std::string usage;  // "penstock ls PATH... [OPTIONS]"
  std::vector<OptionManual> arguments;
  std::vector<OptionManual> options;
  std::vector<Example> examples;
  std::vector<std::string> paragraphs;  // what else there is to know
  std::vector<Manual> commands;

  // "ls" of "penstock ls".
  std::string short_name() const { return name.substr(name.rfind(' ') + 1); }
};

// A footer of `app` has a line for each example, "penstock ls model/ # what is in it", then an empty line and a line
// for each paragraph.
Manual describe(const CLI::App& app);

// A validator that accepts everything and tells what would make sense.
CLI::Validator suggests(const std::vector<std::string>& choices);

}  // namespace penstock::cli
