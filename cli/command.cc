#include "command.h"

#include <fmt/format.h>
#include <unistd.h>

#include "penstock/size.h"
#include "remote.h"
#include "text.h"

namespace penstock::cli {
namespace {

void write_line(std::string_view start, std::string_view message) {
  const std::string line = std::string(start) + printable(message) + '\n';
  [[maybe_unused]] const auto ignored = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void Console::complain(std::string_view message) const {
  write_line(error_terminal.paint(Tone::kBad, "penstock:") + ' ', message);
}

void Console::complain(const Error& error) const {
  const std::string_view message = error.what();
  const std::size_t colon = message.find(": ");  // the path comes first
  if (error.kind() != ErrorKind::kNotFound || colon == message.npos) return complain(message);
  const std::string_view path = message.substr(0, colon);
  const bool read = message.substr(colon).starts_with(": cannot open: ");  // else it is a directory to write in
  const std::string hint = remote_hint(path, read ? PathUse::kRead : PathUse::kWritten);
  complain(hint.empty() ? std::string(message) : fmt::format("{}; {}", message, hint));
}

void Console::note(std::string_view message) const {
  const std::string_view start = "note: ";
  std::string before = error_terminal.paint(Tone::kWarning, "note:") + ' ';
  const std::size_t width = error_terminal.width > start.size() ? error_terminal.width - start.size() : message.size();
  for (const std::string& line : wrap(printable(message), width)) {
    write_line(before, line);
    before = std::string(start.size(), ' ');
  }
}

CLI::Option* add_size_option(CLI::App& app, const std::string& names, std::uint64_t& nbytes, const std::string& help) {
  const auto parse = [&nbytes](const std::string& text) {
    const auto size = parse_size(text);
    if (!size) throw CLI::ValidationError("'" + text + "' is not a size (such as 5GB, 64MiB or 4096)");
    nbytes = *size;
  };
  return app.add_option_function<std::string>(names, parse, help)->type_name("SIZE");
}

}  // namespace penstock::cli
