// seal(): one pass over all files, whose bytes give the checksums of blocks and tensors alike.
#include "penstock/seal.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "api/files/chunk_directory.h"
#include "api/files/file_bytes.h"
#include "api/load/digests.h"
#include "api/load/reading.h"
#include "base/error.h"
#include "format/checksums.h"
#include "format/detect.h"
#include "format/seal.h"
#include "io/names.h"
#include "io/new_file.h"
#include "transfer/range_checksums.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

std::vector<SealedTensor> sealed_tensors(std::vector<TensorInfo>& tensors) {
  std::vector<SealedTensor> sealed;
  for (TensorInfo& tensor : tensors) {
    const std::uint64_t nbytes = tensor.extent();
    sealed.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape), std::move(tensor.byte_strides),
                      tensor.offset, nbytes, 0});
  }
  std::sort(sealed.begin(), sealed.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return sealed;
}

// One file, and its seal in the making.
class Sealing {
 public:
  Sealing(std::shared_ptr<const File> file, fs::path path, std::uint64_t block_size, bool is_index)
      : file_(std::move(file)), path_(std::move(path)) {
    seal_.size = file_->size();
    seal_.block_size = block_size;
    if (!is_index) {
      // The file as it is, whatever a set makes of it.
      Layout layout = parse_layout(FileBytes(*file_));
      remember_stored(layout);
      seal_.tensors = sealed_tensors(layout.tensors);
    }
    std::vector<std::uint64_t> cuts{seal_.size};
    for (std::uint64_t at = 0; at < seal_.size; at += block_size) cuts.push_back(at);
    for (const SealedTensor& tensor : seal_.tensors) {
      cuts.push_back(tensor.offset);
      cuts.push_back(tensor.range().end);
    }
    checksums_ = std::make_unique<RangeChecksums>(std::move(cuts));
  }

  const std::shared_ptr<const File>& file() const { return file_; }
  RangeChecksums& checksums() { return *checksums_; }

  void finish(std::string sha256) {
    seal_.sha256 = std::move(sha256);
    checksums_->finish();
    for (std::uint64_t i = 0; i < count_blocks(seal_.size, seal_.block_size); ++i) {
      seal_.blocks.push_back(checksums_->of(seal_.block(i)));
    }
    for (SealedTensor& tensor : seal_.tensors) {
      tensor.crc32c = checksums_->of(tensor.range());
      const auto stored = stored_.find(tensor.name);
      if (stored == stored_.end() || stored->second == tensor.crc32c) continue;
      throw_format(file_->path(), "is not sealed: tensor {} is corrupt: its CRC-32C is {:08x}, the file says {:08x}",
                   in_quotes(tensor.name), tensor.crc32c, stored->second);
    }
    text_ = encode_seal(seal_);
    if (text_.size() > kMaxSealSize) {
      throw_argument("{}: its seal would have {} bytes, more than the limit of {}; larger blocks make it smaller",
                     file_->path(), text_.size(), kMaxSealSize);
    }
  }

  SealedFile write(bool durable) const {
    const fs::path target = seal_file_name(path_.native());
    NewFile file = NewFile::create(target);
    file.write(0, text_.data(), text_.size());
    file.finish(text_.size(), durable);
    file.publish();
    if (durable) file.sync_name();
    remove_dead_temporaries(file.directory(),
                            [&](std::string_view name) { return name == target.filename().native(); });
    return {path_, target, seal_.size, seal_.sha256};
  }

 private:
  // What is damaged by what it says itself must not become right by being sealed.
  void remember_stored(const Layout& layout) {
    const auto entry = layout.metadata.find(std::string(kChecksumKey));
    if (entry == layout.metadata.end()) return;
    const auto stored = parse_checksums(entry->second, layout.tensors.size());
    if (!stored) return;
    for (std::size_t i = 0; i < stored->size(); ++i) stored_.emplace(layout.tensors[i].name, (*stored)[i]);
  }

  const std::shared_ptr<const File> file_;
  const fs::path path_;
  Seal seal_;
  std::map<std::string, std::uint32_t> stored_;
  std::unique_ptr<RangeChecksums> checksums_;
  std::string text_;
};

using Sealings = std::vector<std::unique_ptr<Sealing>>;

Sealings open_files(std::span<const fs::path> paths, const SealOptions& options) {
  if (!is_seal_block_size(options.block_size)) {
    throw_argument("block_size must be a power of two from {} to {}, not {}", kSmallestSealBlock, kLargestSealBlock,
                   options.block_size);
  }
  const auto chunks = find_chunks(paths);
  const auto state = chunks ? open_chunk_files(*chunks) : open_checkpoint(paths);
  Sealings sealings;
  for (std::size_t i = 0; i < state->files.size(); ++i) {
    if (state->unpacked[i]) continue;
    sealings.push_back(std::make_unique<Sealing>(state->files[i], state->infos[i].path, options.block_size, false));
  }
  for (const auto& index : state->indexes) {
    sealings.push_back(std::make_unique<Sealing>(index, index->path(), options.block_size, true));
  }
  return sealings;
}

// Every byte once, in whatever order it comes.
void read_files(Sealings& sealings, const SealOptions& options) {
  const Stopwatch watch;
  std::uint64_t nbytes = 0;
  for (const auto& each : sealings) nbytes += each->file()->size();
  if (nbytes == 0) return;
  ReadSession session(decide_settings(options.io, nbytes), host_pool(nullptr));
  std::vector<FileRead> reads;
  for (std::uint32_t i = 0; i < sealings.size(); ++i) {
    const auto& file = sealings[i]->file();
    FileFacts facts;
    facts.wanted = file->size();
    facts.resident = file->resident_bytes({0, file->size()});
    const ReadRequest request{.cache = CachePolicy::kCopy};
    add_read_facts(*file, request, nbytes, facts);
    ReadRoute route = decide_read(request, facts, {}, nbytes, session.settings().block_size);
    route.landing = ReadLanding::kStaged;  // it goes nowhere
    Segment whole{0, file->size(), kNowhere, i};
    whole.straight = false;
    reads.push_back({file, {whole}, route, std::make_shared<NoDestination>()});
  }
  const auto batch = session.start(std::move(reads), [&](const Piece& piece, const std::byte* bytes) {
    sealings[piece.owner]->checksums().add(piece.offset, {bytes, static_cast<std::size_t>(piece.nbytes)});
  });
  ReadSession::wait(*batch, options.progress, nbytes, watch);
}

// The same in order, for the SHA-256.
std::vector<std::string> hash(Sealings& sealings, const SealOptions& options) {
  std::vector<HashedFile> files;
  for (const auto& each : sealings) files.push_back({each->file()});
  return hash_files(files, options.progress,
                    [&](std::size_t file, std::uint64_t offset, std::span<const std::byte> bytes) {
                      sealings[file]->checksums().add(offset, bytes);
                    });
}

}  // namespace

SealReport seal(const fs::path& path, const SealOptions& options) {
  return seal(std::span(&path, 1), options);
}

SealReport seal(std::span<const fs::path> paths, const SealOptions& options) {
  const Stopwatch watch;
  Sealings sealings = open_files(paths, options);
  std::vector<std::string> digests(sealings.size());
  if (options.sha256) {
    digests = hash(sealings, options);
  } else {
    read_files(sealings, options);
  }
  for (std::size_t i = 0; i < sealings.size(); ++i) sealings[i]->finish(std::move(digests[i]));
  SealReport report;
  for (const auto& each : sealings) {
    each->file()->check_unchanged();
    report.files.push_back(each->write(options.durable));
    report.bytes += report.files.back().nbytes;
  }
  report.seconds = watch.seconds();
  return report;
}

}  // namespace penstock
