// JsonWriter: writes one JSON document as a stream of calls, on one line. Commas and escaping are its business.
//
//   json.begin_object();
//   json.field("name", name);
//   json.key("shape"); json.begin_array(); json.value(4); json.end_array();
//   json.end_object();
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::cli {

// `text` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD, so that the result always is.
std::string json_string(std::string_view text);

class JsonWriter {
 public:
  void begin_object() { open('{'); }
  void end_object() { close('}'); }
  void begin_array() { open('['); }
  void end_array() { close(']'); }

  void key(std::string_view name);

  void value(std::string_view text);
  void value(const char* text) { value(std::string_view(text)); }
  void value(double number);  // null when it is not finite
  void value(bool truth);
  void value(std::integral auto number) { raw(std::to_string(number)); }
  void null() { raw("null"); }

  template <typename T>
  void field(std::string_view name, const T& content) {
    key(name);
    value(content);
  }

  // What was written so far, which it lets go of; long documents are taken in parts.
  std::string take();
  std::size_t size() const noexcept { return text_.size(); }

 private:
  void open(char bracket);
  void close(char bracket);
  void separate();
  void raw(std::string_view text);

  std::string text_;
  std::vector<bool> has_items_;  // one per open object or array
  bool after_key_ = false;
};

}  // namespace penstock::cli
