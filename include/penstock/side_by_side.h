// Checkpoints whose tensors share names, and checkpoints that lie inside other files, opened as one: what
// torch.distributed.checkpoint leaves, where every rank has a file with its chunks of the same tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "penstock/export.h"
#include "penstock/reader.h"

namespace PENSTOCK_EXPORT penstock {

// A checkpoint: a file, or a stretch of one.
struct EmbeddedFile {
  std::filesystem::path path;
  // Where it lies in the file: offset and length. Nothing: it is the file.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> stretch;
};

// A tensor's name is preceded by the number of its checkpoint among `files`: "3/layer.weight". Reader::files() has
// every file once. Throws Error.
Reader open_side_by_side(std::span<const EmbeddedFile> files);

}  // namespace penstock
