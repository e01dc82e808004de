#include "api/snapshot.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/bytes.h"
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

std::uint64_t snapshot_size(const Writer::State& work) {
  std::uint64_t size = 0;
  for (const TensorSpec& spec : work.specs) size += align_up(spec.nbytes, 64);
  return size;
}

std::vector<CopyPiece> cut(const Writer::State& work, std::byte* next) {
  std::vector<CopyPiece> pieces;
  for (std::size_t i = 0; i < work.specs.size(); ++i) {
    const std::uint64_t nbytes = work.specs[i].nbytes;
    for (std::uint64_t begin = 0; begin < nbytes; begin += kStep) {
      pieces.push_back({&work.origins[i], begin, {next + begin, std::min(kStep, nbytes - begin)}});
    }
    next += align_up(nbytes, 64);
  }
  return pieces;
}

void copy(const CopyPiece& piece, bool fresh) {
  if (fresh) populate(piece.to.data(), piece.to.size());
  if (piece.origin->data == nullptr) return piece.origin->fill(piece.begin, piece.to);
  std::memcpy(piece.to.data(), piece.origin->data + piece.begin, piece.to.size());
}

void read_from(Writer::State& work, std::byte* next) {
  for (std::size_t i = 0; i < work.specs.size(); ++i) {
    work.origins[i] = {next, {}};
    next += align_up(work.specs[i].nbytes, 64);
  }
}

}  // namespace

std::shared_ptr<Arena> take_snapshot(Writer::State& work, HostPool& pool, const std::function<void()>& check) {
  const std::uint64_t size = snapshot_size(work);
  const unsigned threads = decide_settings(work.options.io, size).threads;
  auto arena = pool.allocate(size);
  const std::vector<CopyPiece> pieces = cut(work, arena->data());
  fan_out(pieces.size(), threads, [&](std::size_t number) {
    check();
    copy(pieces[number], !arena->reused);
  });
  read_from(work, arena->data());
  return arena;
}

}  // namespace penstock
