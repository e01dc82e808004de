// seal(): writes a manifest beside each file of a checkpoint, "NAME.seal.json", without touching the file: CRC-32C of
// every block and every tensor, and on request a SHA-256. Loads, streams and verify() check files against it. The
// format is in docs/formats/seal.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "penstock/export.h"
#include "penstock/options.h"

namespace PENSTOCK_EXPORT penstock {

struct SealOptions {
  bool sha256 = false;  // of every file, too: about 1 GB/s on each core, several files at once
  std::uint64_t block_size = std::uint64_t{1} << 20;  // a power of two from 512 to 1 GiB: how exactly damage is located
  bool durable = true;  // else a seal may be lost in a power cut; it never appears in part
  IoOptions io;
  ProgressFunction progress;
};

struct SealedFile {
  std::filesystem::path path;
  std::filesystem::path seal;
  std::uint64_t nbytes = 0;  // of the file
  std::string sha256;        // 64 hex digits; empty: was not asked for
};

struct SealReport {
  std::vector<SealedFile> files;  // the index of a set among them
  std::uint64_t bytes = 0;
  double seconds = 0;
};

// `path`: as Reader takes it. A file whose own checksums say that it is damaged is not sealed: Error(kFormat). All
// files are read before the first seal is written; a seal that is there already is replaced.
SealReport seal(const std::filesystem::path& path, const SealOptions& options = {});
SealReport seal(std::span<const std::filesystem::path> paths, const SealOptions& options = {});

}  // namespace penstock
