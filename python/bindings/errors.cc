// penstock::Error becomes the Python class of its kind, as penstock/errors.py defines it.
#include <cstring>

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

// Messages name paths, and a path need not be UTF-8.
nb::object message_text(const char* message) {
  PyObject* text = PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(std::strlen(message)), "surrogateescape");
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
