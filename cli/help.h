// The look of --help: what the command does, how it is called, its arguments and options in one column each, examples.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "terminal.h"

namespace penstock::cli {

class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(const Terminal& terminal) : terminal_(terminal) {}

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;

 private:
  Terminal terminal_;
};

}  // namespace penstock::cli
