#include "api/save/snapshot.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/page.h"
#include "base/tuning.h"
#include "memory/populate.h"
#include "transfer/checksum_collector.h"
#include "transfer/fan_out.h"
#include "transfer/settings.h"

namespace penstock {
namespace {

// One file's tensors on their way into its image.
struct FileCopy {
  FileSave& save;
  std::byte* image;
  std::vector<WritePart> tensors;
  std::optional<ChecksumKind> kind;  // nothing where the file wants no checksums
  std::unique_ptr<ChecksumCollector> checksums;
};

// Part of one tensor.
struct CopyPiece {
  const FileCopy* file;
  std::uint32_t tensor;
  std::uint64_t begin;
  std::uint64_t nbytes;
};

void cut(const FileCopy& file, std::vector<CopyPiece>& pieces) {
  for (std::uint32_t tensor = 0; tensor < file.tensors.size(); ++tensor) {
    const std::uint64_t nbytes = file.tensors[tensor].nbytes;
    for (std::uint64_t begin = 0; begin < nbytes; begin += tuning::kSnapshotStep) {
      pieces.push_back({&file, tensor, begin, std::min(tuning::kSnapshotStep, nbytes - begin)});
    }
  }
}

void copy(const CopyPiece& piece, bool fresh) {
  const WritePart& tensor = piece.file->tensors[piece.tensor];
  const std::span to(piece.file->image + tensor.offset + piece.begin, static_cast<std::size_t>(piece.nbytes));
  if (fresh) populate(to.data(), to.size());
  const std::byte* cached = to.data();
  if (tensor.origin.data == nullptr) {
    tensor.origin.fill(piece.begin, to);
  } else {
    cached = tensor.origin.data + piece.begin;
    copy_past_caches(to.data(), cached, to.size());
  }
  if (piece.file->kind) piece.file->checksums->add(*piece.file->kind, piece.tensor, piece.begin, cached, piece.nbytes);
}

}  // namespace

void take_snapshot(std::span<const std::unique_ptr<FileSave>> files, HostPool& pool, const IoOptions& io,
                   const std::function<void()>& check) {
  std::uint64_t size = 0;
  for (const auto& file : files) size += align_up(file->layout.file_size(), page_size());
  const std::shared_ptr<Arena> arena = pool.allocate(size);
  std::vector<FileCopy> copies;
  std::byte* image = arena->data();
  for (const auto& file : files) {
    copies.push_back({*file, image, file->layout.tensor_parts(), file->layout.wanted_checksums(),
                      std::make_unique<ChecksumCollector>()});
    image += align_up(file->layout.file_size(), page_size());
  }
  const unsigned threads = decide_settings(io, size).threads;
  if (arena->pages != nullptr && !arena->reused) {
    // Before the copies, which know no pages: two of them may share one.
    HugePageBudget budget;
    fan_out(arena->size() / kHugePage, threads, [&](std::size_t number) {
      check();
      arena->pages->have(arena->data() + number * kHugePage, kHugePage, budget);
    });
  }
  std::vector<CopyPiece> pieces;
  for (const FileCopy& file : copies) cut(file, pieces);
  fan_out(pieces.size(), threads, [&](std::size_t number) {
    check();
    copy(pieces[number], !arena->reused);
  });
  for (const FileCopy& file : copies) {
    const auto checksums = file.kind ? file.checksums->finish(file.tensors.size()) : std::vector<std::uint32_t>();
    complete_image(file.save, {arena, file.image}, checksums);
  }
}

}  // namespace penstock
