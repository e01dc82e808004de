// penstock::Error becomes the Python class of its kind, as penstock/errors.py defines it.
#include <string>
#include <string_view>

#include "bindings.h"

namespace penstock::python {
namespace {

const char* class_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kNotFound:
      return "NotFoundError";
    case ErrorKind::kPermission:
      return "PermissionDeniedError";
    case ErrorKind::kIsDirectory:
      return "DirectoryError";
    case ErrorKind::kIo:
      return "IoError";
    case ErrorKind::kNoSpace:
      return "NoSpaceError";
    case ErrorKind::kFormat:
      return "FormatError";
    case ErrorKind::kUnsupportedFormat:
      return "UnsupportedFormatError";
    case ErrorKind::kArgument:
      return "ArgumentError";
    case ErrorKind::kSharedMemory:
      return "SharedMemoryError";
    case ErrorKind::kChanged:
      return "ChangedError";
    case ErrorKind::kCancelled:
      return "CancelledError";
    case ErrorKind::kMemory:
      return "OutOfMemoryError";
    case ErrorKind::kDevice:
      return "DeviceError";
    case ErrorKind::kUnsupported:
      return "UnsupportedError";
  }
  return "Error";
}

// One line, whatever the names of files have in them: what a terminal would obey stands in it as \x1b and the like.
std::string printable(std::string_view message) {
  std::string text;
  for (const char character : message) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte == 0x7F) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      text += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      text += character;
    }
  }
  return text;
}

// Messages name paths, and a path need not be UTF-8.
nb::object message_text(const char* message) {
  const std::string line = printable(message);
  PyObject* text = PyUnicode_DecodeUTF8(line.data(), static_cast<Py_ssize_t>(line.size()), "surrogateescape");
  if (text == nullptr) throw nb::python_error();
  return nb::steal(text);
}

void raise_error(const Error& error) {
  try {
    nb::object type = nb::module_::import_("penstock.errors").attr(class_name(error.kind()));
    nb::object instance = type(message_text(error.what()));
    if (error.error_number() != 0) instance.attr("errno") = error.error_number();
    PyErr_SetObject(type.ptr(), instance.ptr());
  } catch (nb::python_error& problem) {
    problem.restore();
  }
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    raise_error(error);
  }
}

}  // namespace

void bind_errors(nb::module_&) {
  nb::register_exception_translator(translate);
}

}  // namespace penstock::python
