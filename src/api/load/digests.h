// Digests of whole files. SHA-256 takes the bytes of a file in order, on one core: several files are hashed at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/load/proofs.h"
#include "penstock/options.h"

namespace penstock {

struct HashedFile {
  std::shared_ptr<const File> file;
  Digest::Kind kind = Digest::Kind::kSha256;
};

// Sees every byte of the files too, in order within each; called from several threads.
using HashObserver = std::function<void(std::size_t file, std::uint64_t offset, std::span<const std::byte> bytes)>;

// The digest of each, as hex digits. Throws Error(kCancelled) when `progress` asks to stop, Error(kChanged) when a file
// is not what it was.
std::vector<std::string> hash_files(std::span<const HashedFile> files, const ProgressFunction& progress,
                                    const HashObserver& observe = {});

// What is wrong with files whose proof is a digest, a line each: those of the reader that `wanted` says, by number, and
// the indexes.
struct DigestProblem {
  std::string text;
  std::uint32_t file = 0;
  bool is_index = false;
};
std::vector<DigestProblem> check_digests(const Reader::State& state, const Proofs& proofs,
                                         const std::vector<bool>& wanted, const ProgressFunction& progress);

}  // namespace penstock
