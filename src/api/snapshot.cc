#include "api/snapshot.h"

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/page.h"
#include "memory/populate.h"
#include "transfer/fan_out.h"
#include "transfer/settings.h"

namespace penstock {
namespace {

constexpr std::uint64_t kStep = 2 * kMiB;

// Part of one tensor, and where it goes.
struct CopyPiece {
  const Origin* origin;
  std::uint64_t begin;
  std::span<std::byte> to;
};

void cut(const WritePart& tensor, std::byte* image, std::vector<CopyPiece>& pieces) {
  for (std::uint64_t begin = 0; begin < tensor.nbytes; begin += kStep) {
    const std::uint64_t length = std::min(kStep, tensor.nbytes - begin);
    pieces.push_back({&tensor.origin, begin, {image + tensor.offset + begin, static_cast<std::size_t>(length)}});
  }
}

void copy(const CopyPiece& piece, bool fresh) {
  if (fresh) populate(piece.to.data(), piece.to.size());
  if (piece.origin->data == nullptr) return piece.origin->fill(piece.begin, piece.to);
  copy_past_caches(piece.to.data(), piece.origin->data + piece.begin, piece.to.size());
}

}  // namespace

void take_snapshot(std::span<const std::unique_ptr<ShardSave>> files, HostPool& pool, const IoOptions& io,
                   const std::function<void()>& check) {
  std::uint64_t size = 0;
  std::vector<std::vector<WritePart>> tensors;
  for (const auto& file : files) {
    size += align_up(file->nbytes(), page_size());
    tensors.push_back(file->tensor_parts());
  }
  const std::shared_ptr<Arena> arena = pool.allocate(size);
  std::vector<CopyPiece> pieces;
  std::byte* image = arena->data();
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (const WritePart& tensor : tensors[i]) cut(tensor, image, pieces);
    files[i]->read_from({arena, image});
    image += align_up(files[i]->nbytes(), page_size());
  }
  fan_out(pieces.size(), decide_settings(io, size).threads, [&](std::size_t number) {
    check();
    copy(pieces[number], !arena->reused);
  });
}

}  // namespace penstock
