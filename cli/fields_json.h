// The structs of penstock/fields.h as JSON: their fields under their own names.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "json.h"
#include "penstock/fields.h"

namespace penstock::cli {

template <Listed Struct>
void write_fields(JsonWriter& json, const Struct& value);

template <typename T>
void write_value(JsonWriter& json, const T& value) {
  if constexpr (Listed<T>) {
    json.begin_object();
    write_fields(json, value);
    json.end_object();
  } else {
    json.value(value);
  }
}

inline void write_value(JsonWriter& json, const std::filesystem::path& path) {
  json.value(path.string());
}

template <typename T>
void write_value(JsonWriter& json, const std::optional<T>& value) {
  value ? write_value(json, *value) : json.null();
}

template <typename T>
void write_value(JsonWriter& json, const std::vector<T>& values) {
  json.begin_array();
  for (const T& value : values) write_value(json, value);
  json.end_array();
}

template <typename T>
void write_field(JsonWriter& json, const char* name, const T& value) {
  json.key(name);
  write_value(json, value);
}

// Only saves have phases: loads leave the key out.
inline void write_field(JsonWriter& json, const char* name, const std::vector<Phase>& phases) {
  if (phases.empty()) return;
  json.key(name);
  json.begin_object();
  for (const Phase& phase : phases) json.field(phase.name, phase.seconds);
  json.end_object();
}

inline void write_field(JsonWriter& json, const char* name, const ChecksumField& checksum) {
  if (checksum.value) json.field(name, fmt::format("{:08x}", *checksum.value));
}

// The fields go into the object that is open.
template <Listed Struct>
void write_fields(JsonWriter& json, const Struct& value) {
  visit_fields(value, [&json](const char* name, const auto& field) { write_field(json, name, field); });
}

}  // namespace penstock::cli
