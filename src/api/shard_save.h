// ShardSave: the save of one file, from its layout to its name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "format/layout.h"
#include "format/safetensors.h"
#include "io/new_file.h"
#include "penstock/options.h"
#include "penstock/parallel.h"
#include "transfer/checksum_collector.h"
#include "transfer/crew.h"
#include "transfer/write.h"

namespace penstock {

// The tensors of one file.
struct Shard {
  std::filesystem::path path;
  std::vector<TensorSpec> specs;
  std::vector<Origin> origins;
  Metadata metadata;
};

class ShardSave {
 public:
  // Lays the file out and reserves its space: a full disk is met before any data is moved. `options` outlives this.
  // With `snapshot` an image of it will be written (write_from).
  ShardSave(Shard shard, const SaveOptions& options, bool snapshot);

  // The same over a file that several processes fill in. Only the one that made it reserves its space.
  ShardSave(Shard shard, const SaveOptions& options, NewFile file, bool reserve);

  std::uint64_t nbytes() const { return layout_.file_size; }
  double layout_seconds() const { return layout_seconds_; }
  double reserve_seconds() const { return reserve_seconds_; }
  const WriteRoute& route() const { return route_; }
  // One sentence: why this route.
  std::string reason() const;
  NewFile& file() { return file_; }

  // The tensors, by offset, and which checksum of each the file wants, if any.
  std::vector<WritePart> tensor_parts() const;
  std::optional<ChecksumKind> wanted_checksums() const;
  // `image` has room for the whole file, and each tensor at its offset: gets everything else, and is what will be
  // written. `checksums`: what the file wants, in the order of tensor_parts().
  void write_from(std::shared_ptr<std::byte> image, std::span<const std::uint32_t> checksums);

  // Writes everything but the syncs. `progress` gets the bytes done and stops it by returning false.
  void write(Crew& crew, const std::function<bool(std::uint64_t)>& progress);

  // For several processes: the whole pages of tensors that lie in `share`; then, by one of them, everything else.
  std::vector<ShareChecksum> write_share(Crew& crew, ByteRange share,
                                         const std::function<bool(std::uint64_t)>& progress);
  void write_rest(Crew& crew, std::span<const ShareChecksum> checksums);

  // Of everything in the file but the tensors' bytes and their checksums.
  static std::uint64_t fingerprint(const Shard& shard, const SaveOptions& options);

  // Sets the final size and syncs. `keep_going` is asked while that takes long.
  void finish(const std::function<bool()>& keep_going);

 private:
  void prepare(bool reserve);
  void encode();
  std::uint64_t shared_alignment() const;
  void set_checksums(std::vector<std::uint32_t> checksums);
  std::vector<WritePart> all_parts() const;
  std::vector<WritePart> interior_parts(std::uint64_t alignment) const;
  void add_edges(ChecksumCollector& collector, std::uint64_t alignment) const;
  void run(Crew& crew, std::span<const WritePart> parts, PieceObserver observe, std::uint64_t done,
           const std::function<bool(std::uint64_t)>& progress);

  Shard shard_;
  const SaveOptions& options_;
  const bool small_;
  NewFile file_;
  WriteRoute route_;
  FilePlan layout_;
  std::optional<safetensors::Placement> placement_;  // decided once: what is written stays where it is
  std::shared_ptr<const std::byte> image_;           // of the whole file, if there is one
  std::vector<std::uint32_t> checksums_;             // CRC-32 of each spec, once they are known
  double layout_seconds_ = 0;
  double reserve_seconds_ = 0;
};

}  // namespace penstock
