// FileSave: one file on its way: what it holds, how that is laid out, and who writes it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "api/save/file_layout.h"
#include "api/save/file_writer.h"

namespace penstock {

// Immovable: the layout looks into the content.
struct FileSave {
  // Lays the file out; makes it, unnamed, and reserves its space. With `snapshot` it is going to be written from an
  // image. `options` outlives this.
  FileSave(FileContent file_content, const SaveOptions& save_options, bool snapshot);
  FileSave(const FileSave&) = delete;
  FileSave& operator=(const FileSave&) = delete;

  // Writes everything but the syncs: from the image, if there is one, else from the tensors.
  void write(Crew& crew, const FileWriter::Watch& watch);

  const SaveOptions& options;
  double layout_seconds = 0;
  double reserve_seconds = 0;
  FileContent content;
  FileLayout layout;
  FileWriter writer;
  std::shared_ptr<const std::byte> image;  // of the whole file, once a snapshot was taken
};

// Makes what is still missing in `image`, which has room for the whole file and each tensor at its offset, and has the
// file written from there. `checksums`: what the file wants, in the order of FileLayout::order().
void complete_image(FileSave& save, std::shared_ptr<std::byte> image, std::span<const std::uint32_t> checksums);

}  // namespace penstock
