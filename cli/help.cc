#include "help.h"

#include <algorithm>

#include "manual.h"
#include "text.h"

namespace penstock::cli {
namespace {

constexpr std::size_t kWidest = 100;        // longer lines are hard to read
constexpr std::size_t kLeastText = 30;      // beside its term; else it stands below
constexpr std::size_t kIndentBelow = 6;     // of what stands below
constexpr std::size_t kWidestCommand = 46;  // of an example that has its explanation beside it

struct Entry {
  std::string term;
  std::string text;
};

std::vector<Entry> entries_of(const std::vector<OptionManual>& options) {
  std::vector<Entry> entries;
  for (const OptionManual& option : options) entries.push_back({option.term(), option.help});
  return entries;
}

std::vector<Entry> entries_of(const std::vector<Manual>& commands) {
  std::vector<Entry> entries;
  for (const Manual& command : commands) entries.push_back({command.short_name(), command.summary});
  return entries;
}

std::vector<Entry> entries_of(const std::vector<Example>& examples) {
  std::vector<Entry> entries;
  for (const Example& example : examples) entries.push_back({example.command, example.explanation});
  return entries;
}

std::size_t widest(const std::vector<Entry>& entries, std::size_t width, std::size_t most) {
  for (const Entry& entry : entries) {
    const std::size_t term = display_width(entry.term);
    if (term <= most) width = std::max(width, term);
  }
  return width;
}

class Page {
 public:
  Page(const Terminal& terminal, std::size_t width) : terminal_(terminal), width_(width) {}

  void heading(const std::string& title) { text_ += "\n" + terminal_.paint(Tone::kBold, title) + "\n"; }

  void paragraph(const std::string& text, std::size_t indent) {
    for (const std::string& line : wrap(text, width_ - indent)) text_ += std::string(indent, ' ') + line + "\n";
  }

  // Terms in a column of `width`, and what they mean beside them, or below where there is no room.
  void list(const std::vector<Entry>& entries, std::size_t width) {
    for (const Entry& entry : entries) {
      text_ += "  " + terminal_.paint(Tone::kAccent, entry.term);
      const std::size_t used = display_width(entry.term);
      const bool beside = used <= width && width + 4 + kLeastText <= width_;
      if (entry.text.empty()) {
        text_ += "\n";
      } else if (beside) {
        list_beside(entry.text, used, width + 4);
      } else {
        text_ += "\n";
        paragraph(entry.text, kIndentBelow);
      }
    }
  }

  void gap() { text_ += "\n"; }
  std::string take() { return std::move(text_); }

 private:
  void list_beside(const std::string& text, std::size_t used, std::size_t indent) {
    std::size_t spaces = indent - used - 2;
    for (const std::string& line : wrap(text, width_ - indent)) {
      text_ += std::string(spaces, ' ') + line + "\n";
      spaces = indent;
    }
  }

  const Terminal& terminal_;
  std::size_t width_;
  std::string text_;
};

}  // namespace

std::string HelpFormatter::make_help(const CLI::App* app, std::string, CLI::AppFormatMode) const {
  const Manual manual = describe(*app);
  const std::vector<Entry> arguments = entries_of(manual.arguments);
  const std::vector<Entry> options = entries_of(manual.options);
  const std::vector<Entry> commands = entries_of(manual.commands);
  const std::vector<Entry> examples = entries_of(manual.examples);
  const std::size_t width = widest(commands, widest(options, widest(arguments, 0, kWidest), kWidest), kWidest);
  Page page(terminal_, terminal_.width == 0 ? 80 : std::clamp<std::size_t>(terminal_.width, kLeastText, kWidest));
  page.paragraph(manual.summary, 0);
  page.heading("Usage");
  page.paragraph(manual.usage, 2);
  if (!commands.empty()) page.heading("Commands");
  page.list(commands, width);
  if (!arguments.empty()) page.heading("Arguments");
  page.list(arguments, width);
  page.heading("Options");
  page.list(options, width);
  page.heading("Examples");
  page.list(examples, widest(examples, 0, kWidestCommand));
  for (const std::string& paragraph : manual.paragraphs) {
    page.gap();
    page.paragraph(paragraph, 0);
  }
  return page.take();
}

}  // namespace penstock::cli
