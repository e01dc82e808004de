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
#include "transfer/progress.h"
#include "transfer/settings.h"
#include "transfer/write.h"

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
    if (file.tensors[tensor].origin.device != nullptr) continue;
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

// Copies the tensors that lie on devices, on threads of its own.
class DeviceCopies {
 public:
  DeviceCopies(const Settings& settings, DeviceUse& devices)
      : crew_(without_engine(settings), devices.staging(settings, host_pool(nullptr))) {}

  void start(const FileCopy& file, bool fresh) {
    std::vector<WritePart> parts = file.tensors;
    for (WritePart& part : parts) {
      if (part.origin.device == nullptr) part.nbytes = 0;
    }
    WriteTarget image;
    image.path = file.save.content.path.native();
    image.straight = false;
    image.memory = file.image;
    image.fresh = fresh;
    PieceObserver observe;
    if (file.kind) {
      observe = [&file](const Piece& piece, const std::byte* bytes) {
        const std::uint64_t begin = piece.offset - file.tensors[piece.owner].offset;
        file.checksums->add(*file.kind, piece.owner, begin, bytes, piece.nbytes);
      };
    }
    batches_.push_back(plan_write(std::move(image), parts, crew_.settings().block_size, std::move(observe)));
    start_writing(crew_, batches_.back());
  }

  void wait(const std::function<void()>& check) {
    const auto keep_going = [&](const Progress&) {
      check();
      return true;
    };
    for (const auto& batch : batches_) wait_with_progress(*batch, keep_going, 0, Stopwatch());
  }

 private:
  // No file is read or written.
  static Settings without_engine(Settings settings) {
    settings.make_engine = [](unsigned) { return make_inline_engine(); };
    return settings;
  }

  Crew crew_;
  std::vector<std::shared_ptr<WriteBatch>> batches_;
};

}  // namespace

void take_snapshot(std::span<const std::unique_ptr<FileSave>> files, HostPool& pool, const IoOptions& io,
                   DeviceUse& devices, const std::function<void()>& check) {
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
  // After what it writes to and looks into: when something throws, it goes first, with all that is under way.
  std::optional<DeviceCopies> from_devices;
  if (!devices.empty()) {
    from_devices.emplace(decide_settings(io, size, Direction::kWrite, devices.passage()), devices);
    for (const FileCopy& file : copies) from_devices->start(file, !arena->reused);
  }
  std::vector<CopyPiece> pieces;
  for (const FileCopy& file : copies) cut(file, pieces);
  fan_out(pieces.size(), threads, [&](std::size_t number) {
    check();
    copy(pieces[number], !arena->reused);
  });
  if (from_devices) from_devices->wait(check);
  for (const FileCopy& file : copies) {
    const auto checksums = file.kind ? file.checksums->finish(file.tensors.size()) : std::vector<std::uint32_t>();
    complete_image(file.save, {arena, file.image}, checksums);
  }
}

}  // namespace penstock
