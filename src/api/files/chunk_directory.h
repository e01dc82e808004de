// Directories of torch.distributed.checkpoint, whose files have parts of the same tensors.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "api/files/reader_state.h"
#include "format/chunks.h"

namespace penstock {

// What says where the chunks are, where `paths` is one such directory: penstock.dcp's dcp.json, or torch's `.metadata`.
std::optional<std::filesystem::path> find_chunks(std::span<const std::filesystem::path> paths);

// What it says. Throws Error(kFormat).
ChunkedCheckpoint read_chunks(const std::filesystem::path& description);

// All files that a dcp.json names, opened as they are: for those who look at whole files. The description and an index
// beside it are the state's indexes. Throws Error, and Error(kUnsupported) for torch's `.metadata`.
std::shared_ptr<Reader::State> open_chunk_files(const std::filesystem::path& description);

}  // namespace penstock
