#include "headline.h"

#include <algorithm>
#include <vector>

#include "text.h"

namespace penstock::cli {
namespace {

// Of text that may have colours.
std::size_t visible_width(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      i = std::min(text.find('m', i), text.size() - 1);
    } else {
      plain += text[i];
    }
  }
  return display_width(plain);
}

std::vector<std::string> wrap_for(const Terminal& terminal, std::string_view text, std::size_t indent) {
  if (terminal.width == 0) return {std::string(text)};
  return wrap(text, terminal.width > indent ? terminal.width - indent : 1);
}

}  // namespace

void print_headline(Console& console, const std::string& mark, const std::string& path, const std::string& details) {
  const Terminal& terminal = console.terminal;
  const std::string name = printable(path);
  const std::string start = mark.empty() ? "" : mark + " ";
  const std::size_t used = visible_width(start);
  const std::string rest = details.empty() ? "" : "  " + details;
  if (terminal.width == 0 || used + display_width(name) + display_width(rest) <= terminal.width) {
    console.out.print("{}{}{}\n", start, terminal.paint(Tone::kBold, name), rest);
    return;
  }
  const std::size_t room = terminal.width > used ? terminal.width - used : 1;
  const std::string shortened = shorten_middle(name, room, terminal.unicode ? "…" : "...");
  console.out.print("{}{}\n", start, terminal.paint(Tone::kBold, shortened));
  if (!details.empty()) print_sentence(console, "  ", details);
}

void print_sentence(Console& console, const std::string& start, std::string_view text, Tone tone) {
  const Terminal& terminal = console.terminal;
  const std::size_t indent = visible_width(start);
  std::string before = start;
  for (const std::string& line : wrap_for(terminal, text, indent)) {
    console.out.print("{}{}\n", before, terminal.paint(tone, line));
    before = std::string(indent, ' ');
  }
}

}  // namespace penstock::cli
