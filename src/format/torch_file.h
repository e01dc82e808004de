// PyTorch checkpoints: the zip format of torch.save since 1.6, and the legacy one. See docs/formats/torch.md.
//
// Both are a pickle, which is read as data (see pickle.h), and storages, whose bytes lie in the file as they are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "format/layout.h"
#include "format/torch_tree.h"

namespace penstock::torch {

inline constexpr std::string_view kZipFormat = "torch";
inline constexpr std::string_view kLegacyFormat = "torch-legacy";

// A whole checkpoint as its pickle describes it. Immovable: the tree looks into the text.
struct Checkpoint {
  std::string_view format;
  std::unique_ptr<const std::string> text;  // of the pickle
  std::unique_ptr<const Tree> tree;
  std::vector<std::uint64_t> storage_offsets;  // in the file, by the number of the storage
  struct Checked {
    std::string name;
    std::uint64_t offset = 0;
    std::uint64_t nbytes = 0;
    std::uint32_t crc32 = 0;
  };
  std::vector<Checked> records;  // of a zip: everything that has a checksum
};

bool looks_like_zip(const ByteSource& source);
bool looks_like_legacy(const ByteSource& source);

// Throws Error(kFormat) that names the record or the byte, and what is wrong there; Error(kUnsupportedFormat) for what
// may be sound, but is not read here: programs, classes, compressed records, other byte orders.
Checkpoint read_zip(const ByteSource& source);
Checkpoint read_legacy(const ByteSource& source);
Checkpoint read_checkpoint(const ByteSource& source);

// The tensors by their paths in the tree.
Layout parse_zip(const ByteSource& source);
Layout parse_legacy(const ByteSource& source);

// The storages, as tensors of bytes.
Layout parse_storages(const ByteSource& source);

}  // namespace penstock::torch
