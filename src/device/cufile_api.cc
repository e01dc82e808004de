#include "device/cufile_api.h"

#include "device/dynamic_library.h"

namespace penstock::cuda {
namespace {

FileLibrary open_cufile() {
  static FileApi api;
  FileLibrary result;
  DynamicLibrary library("PENSTOCK_LIBCUFILE", "libcufile.so.0");
  if (!library.open(result.why_not)) return result;
#define PENSTOCK_FIND(type, member, symbol, parameters) \
  if (!library.find(#symbol, api.member, result.why_not)) return result;
  PENSTOCK_CUFILE_SYMBOLS(PENSTOCK_FIND)
#undef PENSTOCK_FIND
  result.api = &api;
  return result;
}

}  // namespace

const FileLibrary& open_file_library() {
  static const FileLibrary library = open_cufile();
  return library;
}

}  // namespace penstock::cuda
