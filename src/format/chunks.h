// Directories of torch.distributed.checkpoint: tensors in chunks, which lie in files of ranks, and one file that says
// where. That is dcp.json of penstock.dcp (docs/dcp.md), or `.metadata`, a pickle of torch's FileSystemWriter, which is
// read as data: nothing is imported or executed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/layout.h"

namespace penstock {

inline constexpr std::string_view kChunksFile = "dcp.json";
inline constexpr std::string_view kTorchChunksFile = ".metadata";

inline constexpr std::size_t kMostChunkDimensions = 64;  // torch's limit

// A box of a tensor. Its bytes are those of a tensor in a file: of the same name, or, where there is a stretch, the
// only one of the checkpoint that lies there.
struct TensorChunk {
  std::uint32_t file = 0;                                          // index into ChunkedCheckpoint::files
  std::optional<std::pair<std::uint64_t, std::uint64_t>> stretch;  // offset and length
  Shape offsets;
  Shape shape;
};

// Elements of four bits are counted in pairs, as torch does.
struct ChunkedTensor {
  std::string name;
  DType dtype = DType::kU8;
  Shape shape;
  std::vector<TensorChunk> chunks;
};

struct ChunkedCheckpoint {
  std::vector<std::string> files;  // plain names, in the directory
  std::vector<ChunkedTensor> tensors;
  std::vector<std::string> objects;  // names of values that are no tensors
};

// dcp.json. Chunks lie within their tensor, are apart, and together are all of it. Throws Error(kFormat).
ChunkedCheckpoint parse_chunks(const ByteSource& source);

// torch's `.metadata`, by the same rules. Throws Error(kFormat), or kUnsupportedFormat for what torch may read.
ChunkedCheckpoint parse_torch_chunks(const ByteSource& source);

// The text of dcp.json for tensors that are whole ones, each in one of `files`: `tensors` have one chunk each.
std::string encode_chunks(const ChunkedCheckpoint& checkpoint);

// Throws Error(kFormat) that names `path` for chunks that are not what parse_chunks() says.
void check_chunks(const ChunkedTensor& tensor, std::string_view path);

}  // namespace penstock
