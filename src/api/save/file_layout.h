// FileLayout: where every byte of a new file comes from. Pure: a function of the tensors' names, types, sizes and
// order, of the metadata and of the options, never of where tensors lie in memory. The same tensors give the same
// bytes.
//
// A file may carry checksums, in its metadata or between its data as a zip does. Their room is laid out before they are
// known: with_checksums() gives the same layout with their values in it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "format/layout.h"
#include "penstock/options.h"
#include "transfer/checksum_collector.h"
#include "transfer/write.h"

namespace penstock {

// The tensors of one file.
struct FileContent {
  std::filesystem::path path;
  std::vector<TensorSpec> specs;
  std::vector<Origin> origins;  // of each spec: its bytes, in whole elements
  Metadata metadata;
};

class FileLayout {
 public:
  // Borrows both, for as long as it lives.
  FileLayout(const FileContent& content, const SaveOptions& options);

  // `checksums`: of each spec, of the kind that wanted_checksums() says.
  FileLayout with_checksums(std::span<const std::uint32_t> checksums) const;

  std::uint64_t file_size() const noexcept { return plan_.file_size; }
  // Indices of the specs, by offset.
  std::span<const std::uint32_t> order() const noexcept { return plan_.order; }
  std::uint64_t offset_of(std::uint32_t spec) const noexcept { return plan_.offsets[spec]; }
  std::optional<ChecksumKind> wanted_checksums() const;

  // Of everything in the file but the tensors' bytes and their checksums.
  std::uint64_t fingerprint() const;

  // The tensors, in the order of order().
  std::vector<WritePart> tensor_parts() const;
  // Of each of them what lies between its first and its last multiple of `alignment`; it may be empty.
  std::vector<WritePart> interior_parts(std::uint64_t alignment) const;
  // What that leaves out.
  struct Edge {
    std::uint32_t spec = 0;
    WritePart part;
  };
  std::vector<Edge> edges(std::uint64_t alignment) const;
  // The whole file, by offset. Looks into this layout.
  std::vector<WritePart> all_parts() const;

 private:
  FileLayout(const FileContent& content, const SaveOptions& options, std::span<const std::uint32_t> checksums,
             std::span<const std::uint32_t> order);

  const FileContent* content_;
  const SaveOptions* options_;
  FilePlan plan_;
};

// The bytes of `part` from `begin` to `end`, both offsets in the file.
WritePart cut_part(const WritePart& part, std::uint64_t begin, std::uint64_t end);

// `parts` less what `taken`, which lies within single parts, covers; both by offset.
std::vector<WritePart> without(std::span<const WritePart> parts, std::span<const WritePart> taken);

}  // namespace penstock
