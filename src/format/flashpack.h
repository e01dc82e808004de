// FlashPack: `payload | JSON | u64le length of the JSON | "FLASHPK\0"`. See docs/formats/flashpack.md.
//
// The payload is made of blocks, one per dtype; a block holds tensors at offsets counted in its elements. Version 3 has
// exactly one block, version 4 any number.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "format/layout.h"
#include "penstock/options.h"

namespace penstock::flashpack {

// With FlashPackOptions::align_large, tensors of at least this many bytes start on a multiple of kLargeAlignment.
inline constexpr std::uint64_t kLargeTensor = 256 * kKiB;
inline constexpr std::uint64_t kLargeAlignment = 4096;

struct Block {
  DType dtype = DType::kU8;
  std::uint64_t offset = 0;  // bytes from the start of the file
  std::uint64_t nbytes = 0;
};

// A footer of which everything was checked: blocks lie in the payload, tensors in their blocks, and no two overlap.
struct Footer {
  std::string text;  // the JSON, as it stands in the file
  unsigned version = 0;
  std::vector<Block> blocks;
  std::vector<TensorInfo> tensors;  // in the order of the index
  Metadata metadata;
};

// True when the file ends as this format does. The rest may be wrong: then parse() says so.
bool looks_like(const ByteSource& source);

// Throws Error(kFormat) that names the path, the place and the rule that was broken. Nothing of a size that the file
// claims is allocated before that size was held against the file's own.
Footer parse_footer(const ByteSource& source);

Layout parse(const ByteSource& source);

// The blocks as one-dimensional tensors called "0", "1", ...
Layout parse_blocks(const ByteSource& source);

// Lays out a file: a version 3 for tensors of one dtype, else a version 4. With the default options and no metadata,
// which goes into a key of its own that other readers pass over, the file is byte for byte what flashpack 0.4.5 writes.
// Throws Error(kArgument or kUnsupported) for names and dtypes that can't be stored, and when there is no data at all.
FilePlan encode(std::span<const TensorSpec> specs, const Metadata& metadata, const FlashPackOptions& options = {});

}  // namespace penstock::flashpack
