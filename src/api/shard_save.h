// ShardSave: the save of one file, from its layout to its name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "format/layout.h"
#include "io/new_file.h"
#include "penstock/options.h"
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
  ShardSave(Shard shard, const SaveOptions& options);

  std::uint64_t nbytes() const { return layout_.file_size; }
  double layout_seconds() const { return layout_seconds_; }
  double reserve_seconds() const { return reserve_seconds_; }
  const WriteRoute& route() const { return route_; }
  // One sentence: why this route.
  std::string reason() const;
  NewFile& file() { return file_; }

  // Writes everything but the syncs. `progress` gets the bytes done and stops it by returning false.
  void write(Crew& crew, const std::function<bool(std::uint64_t)>& progress);

  // Sets the final size and syncs. `keep_going` is asked while that takes long.
  void finish(const std::function<bool()>& keep_going);

 private:
  void encode();
  bool wants_checksums() const;
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
  std::vector<std::uint32_t> checksums_;  // CRC-32 of each spec, once they are known
  double layout_seconds_ = 0;
  double reserve_seconds_ = 0;
};

}  // namespace penstock
