// What a Reader knows: shared by it, its streams and the whole-file operations. Immutable once made.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "api/files/unpacked.h"
#include "base/fork.h"
#include "base/name_hash.h"
#include "format/detect.h"
#include "io/file.h"
#include "penstock/reader.h"

namespace penstock {

struct SliceSharing;

struct Reader::State {
  std::vector<std::shared_ptr<const File>> files;
  std::vector<FileInfo> infos;
  std::vector<TensorInfo> tensors;  // by file, then by offset
  Metadata metadata;
  std::vector<bool> partial;  // per file: some of its tensors are stale copies and left out
  // Per file: null, unless it is what another one holds packed.
  std::vector<std::shared_ptr<const UnpackedFile>> unpacked;
  std::vector<std::shared_ptr<const File>> indexes;  // the index.json files that named them

  // What slices of the same file share, made by the first one: see load/slice_sharing.h.
  PerProcess<MadeOnce<std::vector<std::shared_ptr<SliceSharing>>>> sharing;

  // Adds an opened file with its tensors and, where it has packed ones, the file that they are unpacked to.
  void add(const std::filesystem::path& path, std::shared_ptr<const File> file, Layout layout, bool is_partial = false);

  // Has bytes of a file unpacked, if it is one that is: whoever is going to read them calls it first.
  void require_unpacked(std::uint32_t file, ByteRange range) const {
    if (unpacked[file]) unpacked[file]->require(range);
  }

  const TensorInfo* find(std::string_view name) const;
  // Its place in `tensors`; throws Error(kNotFound) naming the checkpoint when there is none.
  std::size_t require(std::string_view name) const;
  // "model.safetensors" or "model-00001-of-00002.safetensors and 1 more".
  std::string describe_files() const;

  // What the file says each tensor's CRC-32C is, by place in `tensors`; nothing for files that carry none. Throws
  // Error(kFormat) for a malformed entry.
  std::vector<std::optional<std::uint32_t>> expected_checksums() const;

 private:
  // Built when the first name is looked up: many loads never ask.
  MadeOnce<NameMap<std::size_t>> index_;
};

using LayoutParser = Layout (*)(const ByteSource&);

// Opens a file, a list of files, a directory of shards or an index.json.
std::shared_ptr<Reader::State> open_checkpoint(std::span<const std::filesystem::path> paths,
                                               LayoutParser parse = parse_layout);

// Gives the whole-file operations of this layer access to a reader's files.
struct ReaderAccess {
  static const Reader::State& state(const Reader& reader);
  static Reader make(std::shared_ptr<const Reader::State> state);
};

}  // namespace penstock
