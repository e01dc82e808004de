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
  std::vector<bool> storage_is_packed;         // then its offset counts in what was unpacked; empty: none is
  std::vector<PackedBytes> packed;             // the storages that are compressed
  bool is_program = false;                     // a TorchScript archive
};

bool looks_like_zip(const ByteSource& source);
bool looks_like_legacy(const ByteSource& source);

// Throws Error(kFormat) that names the record or the byte, and what is wrong there; Error(kUnsupportedFormat) for what
// may be sound, but is not read here, such as other byte orders. Objects of other classes are left opaque.
Checkpoint read_zip(const ByteSource& source);
Checkpoint read_legacy(const ByteSource& source);
Checkpoint read_checkpoint(const ByteSource& source);

// Throws Error(kUnsupportedFormat) that names the first value that is more than data, and how to load the rest.
void refuse_opaque(const Checkpoint& checkpoint, std::string_view path);

// Where the next part goes when it is unpacked.
std::uint64_t next_packed_offset(const std::vector<PackedBytes>& packed);

// Joins a tree with where its storages lie: the tensors by their paths, and arrays that lie in the pickle.
Layout make_layout(const Checkpoint& checkpoint, std::string_view path);

// The storages alone, as one-dimensional tensors of bytes named by their keys.
Layout make_storage_layout(const Checkpoint& checkpoint);

// The tensors by their paths in the tree.
Layout parse_zip(const ByteSource& source);
Layout parse_legacy(const ByteSource& source);

// The storages, as tensors of bytes.
Layout parse_storages(const ByteSource& source);

}  // namespace penstock::torch
