#include "api/save/file_save.h"

#include <algorithm>

#include "api/save/edges.h"
#include "transfer/progress.h"

namespace penstock {
namespace {

std::uint64_t nbytes_of(const FileContent& content) {
  std::uint64_t nbytes = 0;
  for (const TensorSpec& spec : content.specs) nbytes += spec.nbytes;
  return nbytes;
}

FileLayout timed_layout(const FileContent& content, const SaveOptions& options, double& seconds) {
  const Stopwatch watch;
  FileLayout layout(content, options);
  seconds = watch.seconds();
  return layout;
}

// The checksums lie between the data. What is free of them goes first, the rest when they are known.
void write_checksummed(FileSave& save, ChecksumKind kind, Crew& crew, const FileWriter::Watch& watch) {
  const FileLayout& layout = save.layout;
  const std::uint64_t alignment = interior_alignment(save.writer);
  const std::vector<WritePart> interiors = layout.interior_parts(alignment);
  ChecksumCollector collector;
  save.writer.write(
      crew, interiors,
      [&](const Piece& piece, const std::byte* bytes) {
        collector.add(kind, layout.order()[piece.owner], piece.offset, bytes, piece.nbytes);
      },
      watch);
  add_edges(save.content, layout, alignment, crew, collector);
  const FileLayout known = layout.with_checksums(collector.finish(save.content.specs.size()));
  std::uint64_t done = 0;
  for (const WritePart& part : interiors) done += part.nbytes;
  save.writer.write(crew, without(known.all_parts(), interiors), {}, watch, done);
}

}  // namespace

FileSave::FileSave(FileContent file_content, const SaveOptions& save_options, bool snapshot)
    : options(save_options),
      content(std::move(file_content)),
      layout(timed_layout(content, options, layout_seconds)),
      writer(NewFile::create(content.path), write_request(options), nbytes_of(content), snapshot) {
  const Stopwatch watch;
  writer.reserve(layout.file_size());
  reserve_seconds = watch.seconds();
}

void FileSave::write(Crew& crew, const FileWriter::Watch& watch) {
  if (image != nullptr) {
    const WritePart whole{0, layout.file_size(), {image.get(), {}}};
    return writer.write(crew, {&whole, 1}, {}, watch, 0, image);
  }
  if (const auto kind = layout.wanted_checksums()) return write_checksummed(*this, *kind, crew, watch);
  writer.write(crew, layout.all_parts(), {}, watch);
}

void complete_image(FileSave& save, std::shared_ptr<std::byte> image, std::span<const std::uint32_t> checksums) {
  const std::span<const std::uint32_t> order = save.layout.order();
  for (const std::uint32_t number : order) {
    save.content.origins[number] = {image.get() + save.layout.offset_of(number), {}};
  }
  std::vector<std::uint32_t> by_spec(checksums.size());
  for (std::size_t i = 0; i < checksums.size(); ++i) by_spec[order[i]] = checksums[i];
  const FileLayout known = checksums.empty() ? save.layout : save.layout.with_checksums(by_spec);
  for (const WritePart& part : known.all_parts()) {
    if (part.nbytes == 0) continue;
    const std::span to(image.get() + part.offset, static_cast<std::size_t>(part.nbytes));
    if (part.origin.data == nullptr) {
      part.origin.fill(0, to);
    } else if (part.origin.data != to.data()) {
      std::copy_n(part.origin.data, to.size(), to.data());
    }
  }
  save.image = std::move(image);
}

}  // namespace penstock
