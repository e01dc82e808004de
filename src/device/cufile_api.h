// GPUDirect Storage's functions (libcufile.so.0), found at run time. One line per symbol; see gds.h for when it is
// used.
#pragma once

#include <sys/types.h>

#include <string>

#include "device/cuda_types.h"

namespace penstock::cuda {

struct FileError {  // CUfileError_t
  int file_error = 0;
  Result driver_error = 0;
};

struct FileDescription {  // CUfileDescr_t
  int type = 1;           // CU_FILE_HANDLE_TYPE_OPAQUE_FD
  union {
    int fd;
    void* handle;
  };
  const void* operations = nullptr;
};

using FileHandle = void*;  // CUfileHandle_t

inline constexpr int kFileSuccess = 0;
inline constexpr int kFileDriverFailed = 5011;  // the reason is in driver_error
inline constexpr int kFileAlreadyOpen = 5026;

#define PENSTOCK_CUFILE_SYMBOLS(X)                                                     \
  X(FileError, driver_open, cuFileDriverOpen, ())                                      \
  X(FileError, driver_close, cuFileDriverClose_v2, ())                                 \
  X(FileError, handle_register, cuFileHandleRegister, (FileHandle*, FileDescription*)) \
  X(void, handle_deregister, cuFileHandleDeregister, (FileHandle))                     \
  X(FileError, buffer_register, cuFileBufRegister, (const void*, std::size_t, int))    \
  X(FileError, buffer_deregister, cuFileBufDeregister, (const void*))                  \
  X(ssize_t, read, cuFileRead, (FileHandle, void*, std::size_t, off_t, off_t))         \
  X(ssize_t, write, cuFileWrite, (FileHandle, const void*, std::size_t, off_t, off_t)) \
  X(FileError, version, cuFileGetVersion, (int*))

struct FileApi {
#define PENSTOCK_MEMBER(result, member, symbol, parameters) result(*member) parameters = nullptr;
  PENSTOCK_CUFILE_SYMBOLS(PENSTOCK_MEMBER)
#undef PENSTOCK_MEMBER
};

struct FileLibrary {
  const FileApi* api = nullptr;
  std::string why_not;
};

// $PENSTOCK_LIBCUFILE, or libcufile.so.0 as the dynamic loader finds it. Opened once.
const FileLibrary& open_file_library();

}  // namespace penstock::cuda
