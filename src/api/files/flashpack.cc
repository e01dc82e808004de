#include "penstock/flashpack.h"

#include "api/files/file_bytes.h"
#include "api/files/reader_state.h"
#include "format/flashpack.h"

namespace penstock {

std::string flashpack_footer(const std::filesystem::path& path) {
  const File file = File::open(path);
  return flashpack::parse_footer(FileBytes(file)).text;
}

Reader open_flashpack_blocks(const std::filesystem::path& path) {
  return ReaderAccess::make(open_checkpoint(std::span(&path, 1), flashpack::parse_blocks));
}

}  // namespace penstock
