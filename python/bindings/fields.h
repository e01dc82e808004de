// The structs of penstock/fields.h as dicts: their fields under their own names.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "penstock/fields.h"

namespace penstock::python {

namespace nb = nanobind;

template <Listed Struct>
nb::dict fields_dict(const Struct& value);

template <typename T>
nb::object field_object(const T& value) {
  if constexpr (Listed<T>) {
    return fields_dict(value);
  } else {
    return nb::cast(value);
  }
}

// A path need not be UTF-8.
inline nb::object field_object(const std::filesystem::path& path) {
  return nb::steal(PyUnicode_DecodeFSDefault(path.c_str()));
}

inline nb::object field_object(const ChecksumField& checksum) {
  return checksum.value ? nb::cast(*checksum.value) : nb::none();
}

template <typename T>
nb::object field_object(const std::optional<T>& value) {
  return value ? field_object(*value) : nb::none();
}

template <typename T>
nb::object field_object(const std::vector<T>& values) {
  nb::list list;
  for (const T& value : values) list.append(field_object(value));
  return list;
}

inline nb::object field_object(const std::vector<Phase>& phases) {
  nb::dict dict;
  for (const Phase& phase : phases) dict[nb::cast(phase.name)] = phase.seconds;
  return dict;
}

template <Listed Struct>
nb::dict fields_dict(const Struct& value) {
  nb::dict dict;
  visit_fields(value, [&dict](const char* name, const auto& field) { dict[name] = field_object(field); });
  return dict;
}

}  // namespace penstock::python
