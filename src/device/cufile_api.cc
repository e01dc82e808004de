#include "device/cufile_api.h"

#include <memory>

#include "base/fork.h"
#include "device/dynamic_library.h"

namespace penstock::cuda {
namespace {

FileLibrary open_cufile() {
  auto api = std::make_unique<FileApi>();  // kept for ever once it is whole
  FileLibrary result;
  DynamicLibrary library("PENSTOCK_LIBCUFILE", "libcufile.so.0");
  if (!library.open(result.why_not)) return result;
#define PENSTOCK_FIND(type, member, symbol, parameters) \
  if (!library.find(#symbol, api->member, result.why_not)) return result;
  PENSTOCK_CUFILE_SYMBOLS(PENSTOCK_FIND)
#undef PENSTOCK_FIND
  result.api = api.release();
  return result;
}

auto& opened_file_library = *new MadeOnce<FileLibrary>();

}  // namespace

const FileLibrary& open_file_library() {
  return opened_file_library.get(open_cufile);
}

}  // namespace penstock::cuda
