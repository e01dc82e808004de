#include "api/load/damage.h"

#include <algorithm>

#include "base/checksum.h"
#include "base/error.h"

namespace penstock {
namespace {

constexpr std::uint64_t kReadAgainAtOnce = kMiB;

std::uint32_t checksum_in_file(const File& file, ByteRange range) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::min(range.size(), kReadAgainAtOnce)));
  std::uint32_t checksum = 0;
  for (std::uint64_t at = range.begin; at < range.end;) {
    const auto part =
        std::span(bytes).first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), range.end - at)));
    file.read(at, part.data(), part.size());
    checksum = crc32c(part, checksum);
    at += part.size();
  }
  return checksum;
}

}  // namespace

std::vector<const SealedTensor*> find_damaged(const File& file, const Seal& seal, ByteRange range) {
  std::vector<const SealedTensor*> tensors;
  bool is_within_one = false;
  for (const SealedTensor& tensor : seal.tensors) {
    const ByteRange its = tensor.range();
    if (its.begin >= range.end || its.end <= range.begin) continue;
    tensors.push_back(&tensor);
    is_within_one = its.begin <= range.begin && its.end >= range.end;
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const SealedTensor* a, const SealedTensor* b) { return a->offset < b->offset; });
  if (tensors.size() == 1 && is_within_one) return tensors;
  std::erase_if(tensors,
                [&](const SealedTensor* tensor) { return checksum_in_file(file, tensor->range()) == tensor->crc32c; });
  return tensors;
}

std::string name_damaged(const std::vector<const SealedTensor*>& tensors) {
  constexpr std::size_t kNamed = 2;
  if (tensors.empty()) return "outside of any tensor";
  std::string text = tensors.size() == 1 ? "tensor " : "tensors ";
  for (std::size_t i = 0; i < std::min(tensors.size(), kNamed); ++i) {
    if (i > 0) text += tensors.size() == kNamed ? " and " : ", ";
    text += in_quotes(tensors[i]->name);
  }
  if (tensors.size() > kNamed) text += fmt::format(" and {} more", tensors.size() - kNamed);
  return text;
}

std::string describe_damage(const File& file, const FoundSeal& seal, std::size_t first_block, std::size_t blocks,
                            std::uint32_t found, const std::vector<const SealedTensor*>& tensors) {
  const ByteRange range{seal.seal.block(first_block).begin, seal.seal.block(first_block + blocks - 1).end};
  const std::string how =
      blocks == 1 ? fmt::format("their CRC-32C is {:08x}, the seal says {:08x}", found, seal.seal.blocks[first_block])
                  : fmt::format("{} blocks differ from those that were sealed", blocks);
  return fmt::format("{}: bytes {} to {} ({}) are corrupt: {}{}", file.path(), range.begin, range.end,
                     name_damaged(tensors), how, changed_hint(file, seal));
}

std::string find_problem(const File& file, const FoundSeal& seal) {
  for (std::size_t i = 0; i < seal.seal.blocks.size(); ++i) {
    const std::uint32_t found = checksum_in_file(file, seal.seal.block(i));
    if (found == seal.seal.blocks[i]) continue;
    return describe_damage(file, seal, i, 1, found, find_damaged(file, seal.seal, seal.seal.block(i)));
  }
  return {};
}

}  // namespace penstock
