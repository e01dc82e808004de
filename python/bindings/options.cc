// The option structs. Python fills them once, through their constructors, whose keywords are the names of
// penstock/fields.h. A struct within a struct takes its fields from the same keywords: callers write
// save(..., block_size="4MiB", align_bytes=0). What can't be a value of a field is an Error(kArgument) that names it.
#include <nanobind/stl/map.h>

#include <limits>
#include <type_traits>

#include "bindings.h"

namespace penstock::python {
namespace {

std::string shown(nb::handle value) {
  return nb::repr(value).c_str();
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorKind::kArgument, message);
}

// A whole number from 0 to `most`; nothing for anything else.
std::optional<std::uint64_t> whole_number(nb::handle value, std::uint64_t most) {
  nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) {
    PyErr_Clear();
    return std::nullopt;
  }
  const unsigned long long count = PyLong_AsUnsignedLongLong(number.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  return count <= most ? std::optional<std::uint64_t>(count) : std::nullopt;
}

// Nothing for half of a surrogate pair, which can't be written so.
std::optional<std::string_view> utf8_of(nb::handle text) {
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes != nullptr) return std::string_view(bytes, static_cast<std::size_t>(size));
  PyErr_Clear();
  return std::nullopt;
}

std::string text_from(const char* name, nb::handle value) {
  if (PyUnicode_Check(value.ptr()) == 0) {
    refuse(std::string(name) + " must be a word such as \"auto\", not " + shown(value));
  }
  const auto text = utf8_of(value);
  if (!text) refuse(std::string(name) + " " + shown(value) + " can't be written as UTF-8");
  return std::string(*text);
}

std::string bytes_from(nb::handle value) {
  const auto bytes = nb::cast<nb::bytes>(value);
  return {bytes.c_str(), bytes.size()};
}

// One overload per type of field. None leaves alone what has a natural default.

void assign(const char*, bool& field, nb::handle value) {
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) throw nb::python_error();
  field = truth != 0;
}

void assign(const char* name, unsigned& field, nb::handle value) {
  const auto count = whole_number(value, std::numeric_limits<int>::max());
  if (!count) refuse(std::string(name) + " must be a whole number that is not negative, not " + shown(value));
  field = static_cast<unsigned>(*count);
}

// 64 bits: a number of bytes.
void assign(const char*, std::uint64_t& field, nb::handle value) {
  if (!value.is_none()) field = size_from(value);
}

void assign(const char* name, std::string& field, nb::handle value) {
  if (!value.is_none()) field = text_from(name, value);
}

template <typename Choice>
requires std::is_enum_v<Choice>
void assign(const char* name, Choice& field, nb::handle value) {
  field = choice_from<Choice>(name, text_from(name, value));
}

void assign(const char* name, std::optional<DType>& field, nb::handle value) {
  if (!value.is_none()) field = dtype_from(std::string_view(text_from(name, value)));
}

void assign(const char*, Metadata& field, nb::handle value) {
  if (!value.is_none()) field = nb::cast<Metadata>(value);
}

void assign(const char* name, std::shared_ptr<MemoryPool>& field, nb::handle value) {
  if (value.is_none()) return;
  if (!nb::isinstance<MemoryPool>(value)) refuse(std::string(name) + " must be a MemoryPool, not " + shown(value));
  field = nb::cast<std::shared_ptr<MemoryPool>>(value);
}

void assign(const char*, std::optional<std::string>& field, nb::handle value) {
  if (!value.is_none()) field = bytes_from(value);
}

void assign(const char*, std::optional<std::pair<std::string, std::string>>& field, nb::handle value) {
  if (!value.is_none()) field.emplace(bytes_from(value[0]), bytes_from(value[1]));
}

// Pairs of a device's number and the address of a stream of it.
void assign(const char*, std::vector<DeviceStream>& field, nb::handle value) {
  for (const auto& [device, handle] : nb::cast<std::vector<std::pair<int, std::uintptr_t>>>(value)) {
    field.push_back({device, reinterpret_cast<void*>(handle)});
  }
}

// Functions, and parts of tensors, reach the engine by other ways.
template <typename T>
constexpr bool is_argument = false;
template <typename Signature>
constexpr bool is_argument<std::function<Signature>> = true;
template <>
inline constexpr bool is_argument<decltype(LoadOptions::parts)> = true;

// Moves the keywords that name a field of `options` out of `arguments`.
template <typename Options>
void take_fields(Options& options, nb::dict& arguments) {
  visit_fields(options, [&arguments](const char* name, auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    if constexpr (Listed<Field>) {
      take_fields(field, arguments);
    } else if constexpr (!is_argument<Field>) {
      if (!arguments.contains(name)) return;
      assign(name, field, arguments[name]);
      nb::del(arguments[name]);
    }
  });
}

template <typename Options>
void bind_struct(nb::module_& module, const char* name, const char* description) {
  nb::class_<Options>(module, name, description)
      .def(
          "__init__",
          [](Options* self, nb::kwargs arguments) {
            Options options;
            nb::dict rest = nb::borrow<nb::dict>(arguments);
            take_fields(options, rest);
            for (const auto& [keyword, value] : rest) {
              const std::string message = "got an unexpected keyword argument " + shown(keyword);
              throw nb::type_error(message.c_str());
            }
            new (self) Options(std::move(options));
          },
          nb::sig("def __init__(self, **fields: typing.Any) -> None"));
}

}  // namespace

std::uint64_t size_from(nb::handle value) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  std::optional<std::uint64_t> size;
  if (PyUnicode_Check(value.ptr()) == 0) {
    size = whole_number(value, kMost);
  } else if (const auto text = utf8_of(value)) {
    size = parse_size(*text);
  }
  if (!size) refuse(shown(value) + " is not a size such as 5000000, \"5GB\" or \"4MiB\"");
  return *size;
}

void bind_options(nb::module_& module) {
  bind_struct<IoOptions>(module, "IoOptions", "How bytes are moved; 0 and \"auto\" mean: choose.");
  bind_struct<LoadOptions>(module, "LoadOptions", "What is loaded, and how fast.");
  bind_struct<SaveOptions>(module, "SaveOptions", "What is written, how safely, and how fast.");
  bind_struct<StreamOptions>(module, "StreamOptions", "How a file is written from front to back.");
  bind_struct<VerifyOptions>(module, "VerifyOptions", "What is checked.");
  bind_struct<SealOptions>(module, "SealOptions", "What a seal holds.");
  module.def("parse_size", &size_from, nb::arg("size").none(), nb::sig("def parse_size(size: int | str) -> int"),
             "Bytes: 5000, \"5GB\" (decimal), \"4MiB\" or \"4M\" (binary).");
}

}  // namespace penstock::python
