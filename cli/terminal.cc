#include "terminal.h"

#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace penstock::cli {
namespace {

std::string_view environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

std::string_view escape_for(Tone tone) {
  switch (tone) {
    case Tone::kPlain:
      return "";
    case Tone::kBold:
      return "\x1b[1m";
    case Tone::kDim:
      return "\x1b[2m";
    case Tone::kAccent:
      return "\x1b[36m";
    case Tone::kGood:
      return "\x1b[32m";
    case Tone::kWarning:
      return "\x1b[33m";
    case Tone::kBad:
      return "\x1b[31m";
  }
  return "";
}

unsigned width_of(int descriptor) {
  winsize size{};
  if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

std::string Terminal::paint(Tone tone, std::string_view text) const {
  const std::string_view escape = escape_for(tone);
  if (!colors || escape.empty() || text.empty()) return std::string(text);
  std::string out(escape);
  out += text;
  out += "\x1b[0m";
  return out;
}

std::string Terminal::good_mark() const {
  return paint(Tone::kGood, unicode ? "✓" : "ok");
}

std::string Terminal::bad_mark() const {
  return paint(Tone::kBad, unicode ? "✗" : "bad");
}

Terminal inspect_terminal(int descriptor, ColorChoice choice) {
  Terminal terminal;
  terminal.interactive = isatty(descriptor) == 1 && environment("TERM") != "dumb";
  terminal.colors = choice == ColorChoice::kAlways ||
                    (choice == ColorChoice::kAuto && terminal.interactive && environment("NO_COLOR").empty());
  terminal.unicode = terminal.interactive && std::string_view(nl_langinfo(CODESET)) == "UTF-8";
  terminal.width = isatty(descriptor) == 1 ? width_of(descriptor) : 0;
  return terminal;
}

}  // namespace penstock::cli
