#include "json.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "text.h"

namespace penstock::cli {
namespace {

void append_escaped(std::string& out, std::string_view text) {
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t start = position;
    bool valid = false;
    const char32_t character = next_character(text, position, valid);
    if (!valid) {
      out += "\xEF\xBF\xBD";
    } else if (character == U'"' || character == U'\\') {
      out += '\\';
      out += static_cast<char>(character);
    } else if (character == U'\n') {
      out += "\\n";
    } else if (character == U'\t') {
      out += "\\t";
    } else if (character < 0x20 || character == 0x7F) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(character));
    } else {
      out += text.substr(start, position - start);
    }
  }
}

}  // namespace

std::string json_string(std::string_view text) {
  std::string out = "\"";
  append_escaped(out, text);
  return out + '"';
}

void JsonWriter::key(std::string_view name) {
  separate();
  text_ += json_string(name);
  text_ += ':';
  after_key_ = true;
}

void JsonWriter::value(std::string_view text) {
  raw(json_string(text));
}

void JsonWriter::value(double number) {
  raw(std::isfinite(number) ? fmt::format("{}", number) : "null");
}

void JsonWriter::value(bool truth) {
  raw(truth ? "true" : "false");
}

std::string JsonWriter::take() {
  return std::exchange(text_, {});
}

void JsonWriter::open(char bracket) {
  separate();
  text_ += bracket;
  has_items_.push_back(false);
}

void JsonWriter::close(char bracket) {
  text_ += bracket;
  has_items_.pop_back();
}

void JsonWriter::separate() {
  if (std::exchange(after_key_, false) || has_items_.empty()) return;
  if (has_items_.back()) text_ += ',';
  has_items_.back() = true;
}

void JsonWriter::raw(std::string_view text) {
  separate();
  text_ += text;
}

}  // namespace penstock::cli
