// Which tensors a damaged block of a sealed file hits.
#pragma once

#include <string>
#include <vector>

#include "api/load/proofs.h"

namespace penstock {

// The tensors of the seal that are not what they were, among those that have bytes in `range`. Where it is within one
// tensor that is it; else they are read again, and their checksums tell. Empty: what lies outside of tensors.
std::vector<const SealedTensor*> find_damaged(const File& file, const Seal& seal, ByteRange range);

// `tensor "a"`, `tensors "a", "b" and 3 more`, "outside of any tensor".
std::string name_damaged(const std::vector<const SealedTensor*>& tensors);

// What of a whole small file, an index, does not agree with its seal; empty: it does.
std::string find_problem(const File& file, const FoundSeal& seal);

// `PATH: bytes 0 to 512 (tensor "a") are corrupt: ...`. `blocks`: how many of them, next to each other; `found`: the
// checksum of the first.
std::string describe_damage(const File& file, const FoundSeal& seal, std::size_t first_block, std::size_t blocks,
                            std::uint32_t found, const std::vector<const SealedTensor*>& tensors);

}  // namespace penstock
