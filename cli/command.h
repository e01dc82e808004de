// What the subcommands share. Each has a file with its options, its work and its output, and adds itself to the parser.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

#include "output.h"
#include "penstock/error.h"
#include "progress.h"
#include "terminal.h"

namespace penstock::cli {

inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;
inline constexpr int kUsage = 2;

// The streams, and what all commands understand.
struct Console {
  Output out{1};
  Terminal terminal;        // of standard output
  Terminal error_terminal;  // of standard error
  bool json = false;
  bool quiet = false;

  ProgressMode progress_mode() const {
    if (json || quiet) return ProgressMode::kNone;
    return error_terminal.interactive ? ProgressMode::kBar : ProgressMode::kLines;
  }

  // One line on standard error: "penstock: MESSAGE".
  void complain(std::string_view message) const;
  // Says what to type where the file that was not found is a URL or the name of a model elsewhere.
  void complain(const Error& error) const;
  // The same for something worth knowing that is no failure.
  void note(std::string_view message) const;
};

// A failure that is not the library's; the message is one line that names the file.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The command to run once the arguments are parsed; returns the exit code.
using Action = std::function<int(Console&)>;

void add_ls(CLI::App& app, Action& action);
void add_convert(CLI::App& app, Action& action);
void add_seal(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);
// These describe `app`, all of it, when they run.
void add_completion(CLI::App& app, Action& action);
void add_man(CLI::App& app, Action& action);

// An option that takes a size such as 5GB or 64MiB.
CLI::Option* add_size_option(CLI::App& app, const std::string& names, std::uint64_t& nbytes, const std::string& help);

}  // namespace penstock::cli
