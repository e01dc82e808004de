// Man pages, for groff and mandoc.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "pages.h"
#include "penstock/version.h"

namespace penstock::cli {
namespace {

// Text as roff sets it: no character of it is a request or an escape.
std::string escaped(std::string_view text) {
  std::string out = text.starts_with('.') || text.starts_with('\'') ? "\\&" : "";
  for (const char c : text) {
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// "penstock-ls", the name of a page.
std::string page_name(const std::string& name) {
  std::string page = name;
  std::replace(page.begin(), page.end(), ' ', '-');
  return page;
}

std::string in_capitals(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string lowercase_start(std::string text) {
  text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  return text;
}

// "-s, --summary" in bold, "KEY" in italics.
std::string term_of(const OptionManual& option) {
  if (option.is_argument) return fmt::format("\\fI{}\\fR{}", escaped(option.names[0]), option.many ? "..." : "");
  std::string out;
  for (const std::string& name : option.names)
    out += fmt::format("{}\\fB{}\\fR", out.empty() ? "" : ", ", escaped(name));
  return option.value.empty() ? out : fmt::format("{} \\fI{}\\fR", out, escaped(option.value));
}

std::string listed(const char* title, const std::vector<OptionManual>& options) {
  if (options.empty()) return "";
  std::string out = fmt::format(".SH {}\n", title);
  for (const OptionManual& option : options) out += fmt::format(".TP\n{}\n{}\n", term_of(option), escaped(option.help));
  return out;
}

std::string listed_commands(const Manual& manual) {
  if (manual.commands.empty()) return "";
  std::string out = ".SH COMMANDS\n";
  for (const Manual& command : manual.commands) {
    out += fmt::format(".TP\n\\fB{}\\fR(1)\n{}\n", escaped(page_name(command.name)), escaped(command.summary));
  }
  return out;
}

std::string listed_examples(const Manual& manual) {
  std::string out = ".SH EXAMPLES\n";
  for (const Example& example : manual.examples) {
    out += fmt::format(".TP\n\\fB{}\\fR\n{}\n", escaped(example.command),
                       example.explanation.empty() ? "\\&" : escaped(example.explanation));
  }
  return out;
}

std::string notes_of(const Manual& manual) {
  if (manual.paragraphs.empty()) return "";
  std::string out = ".SH NOTES\n";
  for (const std::string& paragraph : manual.paragraphs) {
    out += fmt::format("{}{}\n", &paragraph == &manual.paragraphs.front() ? "" : ".PP\n", escaped(paragraph));
  }
  return out;
}

std::string exit_status() {
  std::string out = ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : kExitCodes) {
    out += fmt::format(".TP\n{}\n{}\n", escaped(code), escaped(meaning));
  }
  return out;
}

std::string see_also(const Manual& manual, const Manual& all) {
  std::string out;
  const auto add = [&out](const Manual& page) {
    out += fmt::format("{}\\fB{}\\fR(1)", out.empty() ? "" : ",\n", escaped(page_name(page.name)));
  };
  if (manual.name != all.name) add(all);
  for (const Manual& command : all.commands) {
    if (command.name != manual.name) add(command);
  }
  return ".SH SEE ALSO\n" + out + "\n";
}

}  // namespace

std::string roff_page(const Manual& manual, const Manual& all) {
  const std::string name = page_name(manual.name);
  std::string out = fmt::format(".TH {} 1 \"\" \"penstock {}\" \"penstock\"\n", escaped(in_capitals(name)), version());
  out += fmt::format(".SH NAME\n{} \\- {}\n", escaped(name), escaped(lowercase_start(manual.summary)));
  out += fmt::format(".SH SYNOPSIS\n\\fB{}\\fR{}\n", escaped(manual.name),
                     escaped(manual.usage.substr(manual.name.size())));
  out += listed_commands(manual) + listed("ARGUMENTS", manual.arguments) + listed("OPTIONS", manual.options);
  return out + listed_examples(manual) + notes_of(manual) + exit_status() + see_also(manual, all);
}

}  // namespace penstock::cli
