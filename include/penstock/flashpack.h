// FlashPack files seen as what they are made of. Tensors of such a file are read by Reader, like any other's.
#pragma once

#include <filesystem>
#include <string>

#include "penstock/export.h"
#include "penstock/reader.h"

namespace PENSTOCK_EXPORT penstock {

// The JSON text of the file's footer, once all of it was checked. Throws Error.
std::string flashpack_footer(const std::filesystem::path& path);

// The file's blocks, each as one tensor of one dimension: "0", "1", ... in the order of the footer, padding included.
// For those who move whole blocks, or shares of them, and cut tensors out later.
Reader open_flashpack_blocks(const std::filesystem::path& path);

}  // namespace penstock
