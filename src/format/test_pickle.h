// For tests: pickles put together opcode by opcode.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/test_zip.h"

namespace penstock::test {

inline std::string p_string(std::string_view text) {
  return "X" + little(static_cast<std::uint32_t>(text.size())) + std::string(text);
}

inline std::string p_global(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}

// A long of eight bytes, so that any value can be said.
inline std::string p_integer(std::int64_t value) {
  return std::string("\x8a\x08") + little(value);
}

inline std::string p_tuple(const std::vector<std::string>& items) {
  std::string text = "(";
  for (const std::string& item : items) text += item;
  return text + "t";
}

inline std::string p_integers(const std::vector<std::int64_t>& values) {
  std::vector<std::string> items;
  for (const std::int64_t value : values) items.push_back(p_integer(value));
  return p_tuple(items);
}

inline std::string p_dict(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string text = "}(";
  for (const auto& [key, value] : entries) text += p_string(key) + value;
  return text + "u";
}

inline std::string p_storage(std::string_view kind, std::string_view key, std::int64_t count,
                             std::string_view location = "cpu") {
  return p_tuple({p_string("storage"), p_global("torch", kind), p_string(key), p_string(location), p_integer(count)}) +
         "Q";
}

// `more`: the arguments that follow the hooks.
inline std::string p_tensor(const std::string& storage, std::int64_t offset, const std::vector<std::int64_t>& shape,
                            const std::vector<std::int64_t>& strides, const std::vector<std::string>& more = {},
                            std::string_view function = "_rebuild_tensor_v2") {
  std::vector<std::string> arguments{storage,
                                     p_integer(offset),
                                     p_integers(shape),
                                     p_integers(strides),
                                     "\x89",
                                     p_global("collections", "OrderedDict") + ")R"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return p_global("torch._utils", function) + p_tuple(arguments) + "R";
}

inline std::string p_whole(const std::string& body) {
  return std::string("\x80\x02") + body + ".";
}

// A zip of torch with this object and these storages, "0", "1" ...
inline std::vector<ZipEntry> torch_entries(const std::string& body, const std::vector<std::string>& storages) {
  std::vector<ZipEntry> entries{{"x/data.pkl", p_whole(body)}, {"x/byteorder", "little"}};
  for (std::size_t i = 0; i < storages.size(); ++i) entries.push_back({"x/data/" + std::to_string(i), storages[i]});
  entries.push_back({"x/version", "3\n"});
  return entries;
}

inline std::string torch_zip(const std::string& body, const std::vector<std::string>& storages) {
  return zip_file(torch_entries(body, storages));
}

// The start of a legacy file.
inline std::string legacy_start() {
  using namespace std::string_literals;
  return "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."s + p_whole("M\xe9\x03") +
         p_whole(p_dict({{"little_endian", "\x88"}}));
}

inline std::string legacy_storage(std::string_view kind, std::string_view key, std::int64_t count,
                                  const std::string& view = "N") {
  return p_tuple(
             {p_string("storage"), p_global("torch", kind), p_string(key), p_string("cpu"), p_integer(count), view}) +
         "Q";
}

inline std::string legacy_file(const std::string& body, const std::vector<std::string>& keys, const std::string& data) {
  std::string list = "](";
  for (const std::string& key : keys) list += p_string(key);
  return legacy_start() + p_whole(body) + p_whole(list + "e") + data;
}

}  // namespace penstock::test
