// The JSON of a FlashPack footer, read into records as it stands. Whether they fit the file is checked in flashpack.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/layout.h"

namespace penstock::flashpack {

inline constexpr std::string_view kFormatV3 = "flashpack_v3";
inline constexpr std::string_view kFormatV4 = "flashpack_v4";

struct BlockRecord {
  DType dtype = DType::kU8;
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;
  std::uint64_t length_elements = 0;
};

struct TensorRecord {
  std::string name;
  Shape shape;
  std::uint64_t offset = 0;  // elements, from the start of its block
  std::uint64_t length = 0;  // elements
  std::uint64_t block = 0;
};

struct FooterRecord {
  unsigned version = 0;
  std::optional<DType> target_dtype;  // version 3
  std::optional<std::uint64_t> total_elements;
  std::optional<std::uint64_t> payload_bytes;
  std::vector<BlockRecord> blocks;  // version 4
  std::vector<TensorRecord> tensors;
  Metadata metadata;
};

// `text` starts at byte `offset` of the file `path` and is followed by a NUL byte. Throws Error(kFormat) for bad UTF-8,
// bad JSON, missing, repeated and unknown fields, unknown dtypes and unknown versions.
FooterRecord parse_footer_text(std::string_view text, std::uint64_t offset, std::string_view path);

}  // namespace penstock::flashpack
