// penstock::Error: the one exception type of the public API.
//
// Every failure that a caller can meet arrives as an Error whose message is one line and names the file, the place in
// it, what was found and what was expected. `kind()` is for programs: Python maps each kind to a subclass that also
// inherits the natural builtin (FileNotFoundError, ValueError, OSError ...), the native command maps it to an exit
// code.
#pragma once

#include <stdexcept>
#include <string>

#include "penstock/export.h"

namespace PENSTOCK_EXPORT penstock {

enum class ErrorKind {
  kNotFound,           // a file, shard or tensor that does not exist
  kPermission,         // the system refuses access
  kIsDirectory,        // a directory where a file was expected
  kIo,                 // the system failed a read, write, sync or rename
  kNoSpace,            // the filesystem or quota is full
  kFormat,             // the bytes of a file break the rules of its format
  kUnsupportedFormat,  // the file may be sound, but holds what penstock does not read: another program might
  kArgument,           // the caller asked for something that makes no sense
  kSharedMemory,       // tensors whose memory overlaps, in a save that was not told what to do with them
  kChanged,            // a file changed or shrank while it was read
  kCancelled,          // the progress callback asked to stop
  kMemory,             // the memory for a load could not be had
  kDevice,             // a device that is missing, can't be used, or failed a call
  kUnsupported,        // valid, but not something this build or system can do
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, int error_number = 0)
      : std::runtime_error(message), kind_(kind), error_number_(error_number) {}

  ErrorKind kind() const noexcept { return kind_; }

  // The errno behind the failure, or 0.
  int error_number() const noexcept { return error_number_; }

 private:
  ErrorKind kind_;
  int error_number_;
};

}  // namespace penstock
