#include "api/save/file_layout.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/checksum.h"
#include "format/checksums.h"
#include "format/detect.h"

namespace penstock {
namespace {

// torch calls the folder of a zip after the file, or "archive" where the name is not one that it can use.
std::string torch_folder(const std::filesystem::path& path) {
  const std::string stem = path.stem().native();
  const bool is_ascii = std::all_of(stem.begin(), stem.end(), [](char letter) { return letter > 0; });
  return is_ascii ? stem : "archive";
}

// What a save leaves to the format.
EncodeOptions encode_options(const FileContent& content, const SaveOptions& save) {
  EncodeOptions options;
  options.flashpack = save.flashpack;
  options.torch = {save.torch, torch_folder(content.path), {}};
  if (save.torch.pickle) {
    for (const TensorSpec& spec : content.specs) options.torch.keys.push_back(spec.name);
  }
  return options;
}

void sort_parts(std::vector<WritePart>& parts) {
  std::stable_sort(parts.begin(), parts.end(),
                   [](const WritePart& a, const WritePart& b) { return a.offset < b.offset; });
}

// What the format lays out: the file's own metadata, and the checksums where it stores them there.
Metadata metadata_with(const FileContent& content, const SaveOptions& options, std::span<const std::uint32_t> checksums,
                       std::span<const std::uint32_t> order) {
  Metadata metadata = content.metadata;
  if (!options.checksums || has_own_checksums(options.format)) return metadata;
  // In metadata they follow the order of the offsets. Before they are known there is room for them.
  std::vector<std::uint32_t> ordered(content.specs.size());
  for (std::size_t i = 0; i < order.size(); ++i) ordered[i] = checksums[order[i]];
  metadata[std::string(kChecksumKey)] = encode_checksums(ordered);
  return metadata;
}

}  // namespace

FileLayout::FileLayout(const FileContent& content, const SaveOptions& options) : FileLayout(content, options, {}, {}) {}

FileLayout::FileLayout(const FileContent& content, const SaveOptions& options, std::span<const std::uint32_t> checksums,
                       std::span<const std::uint32_t> order)
    : content_(&content), options_(&options) {
  EncodeOptions encode = encode_options(content, options);
  encode.safetensors_empty_metadata = options.empty_metadata;
  if (has_own_checksums(options.format)) encode.checksums = checksums;
  plan_ = encode_layout(options.format, content.specs, metadata_with(content, options, checksums, order), encode);
}

FileLayout FileLayout::with_checksums(std::span<const std::uint32_t> checksums) const {
  return FileLayout(*content_, *options_, checksums, plan_.order);
}

std::optional<ChecksumKind> FileLayout::wanted_checksums() const {
  const bool own = has_own_checksums(options_->format);
  if (!options_->checksums && !(own && options_->torch.checksums)) return std::nullopt;
  return own ? ChecksumKind::kCrc32 : ChecksumKind::kCrc32c;
}

std::uint64_t FileLayout::fingerprint() const {
  std::uint32_t first = crc32c(plan_.prefix, crc32c(plan_.suffix));
  const std::uint32_t second =
      crc32c(std::as_bytes(std::span(plan_.offsets)), crc32c(std::as_bytes(std::span(plan_.order))));
  for (const Literal& literal : plan_.literals) first = crc32c(literal.bytes, first);
  return (std::uint64_t{first} << 32) | second;
}

std::vector<WritePart> FileLayout::tensor_parts() const {
  std::vector<WritePart> parts;
  for (const std::uint32_t number : plan_.order) {
    parts.push_back({plan_.offsets[number], content_->specs[number].nbytes, content_->origins[number]});
  }
  return parts;
}

std::vector<WritePart> FileLayout::interior_parts(std::uint64_t alignment) const {
  std::vector<WritePart> parts = tensor_parts();
  for (WritePart& part : parts) {
    const std::uint64_t begin = align_up(part.offset, alignment);
    const std::uint64_t end = align_down(part.offset + part.nbytes, alignment);
    part = cut_part(part, begin, std::max(begin, end));
  }
  return parts;
}

std::vector<FileLayout::Edge> FileLayout::edges(std::uint64_t alignment) const {
  std::vector<Edge> edges;
  for (const std::uint32_t number : plan_.order) {
    const WritePart whole{plan_.offsets[number], content_->specs[number].nbytes, content_->origins[number]};
    const std::uint64_t end = whole.offset + whole.nbytes;
    const std::uint64_t first = align_up(whole.offset, alignment);
    const std::uint64_t last = align_down(end, alignment);
    const auto add = [&](std::uint64_t from, std::uint64_t to) {
      if (from < to) edges.push_back({number, cut_part(whole, from, to)});
    };
    if (first >= last) {
      add(whole.offset, end);
    } else {
      add(whole.offset, first);
      add(last, end);
    }
  }
  return edges;
}

std::vector<WritePart> FileLayout::all_parts() const {
  std::vector<WritePart> parts = tensor_parts();
  parts.insert(parts.begin(), {0, plan_.prefix.size(), {plan_.prefix.data(), {}}});
  for (const Literal& literal : plan_.literals) {
    parts.push_back({literal.offset, literal.bytes.size(), {literal.bytes.data(), {}}});
  }
  parts.push_back({plan_.file_size - plan_.suffix.size(), plan_.suffix.size(), {plan_.suffix.data(), {}}});
  sort_parts(parts);
  add_zero_parts(parts, plan_.file_size);
  sort_parts(parts);
  return parts;
}

WritePart cut_part(const WritePart& part, std::uint64_t begin, std::uint64_t end) {
  return {begin, end - begin, skip(part.origin, begin - part.offset)};
}

std::vector<WritePart> without(std::span<const WritePart> parts, std::span<const WritePart> taken) {
  std::vector<WritePart> rest;
  auto next = taken.begin();
  for (const WritePart& part : parts) {
    std::uint64_t begin = part.offset;
    const std::uint64_t end = part.offset + part.nbytes;
    for (; next != taken.end() && next->offset < end; ++next) {
      if (next->nbytes == 0 || next->offset < begin) continue;
      if (next->offset > begin) rest.push_back(cut_part(part, begin, next->offset));
      begin = next->offset + next->nbytes;
    }
    if (begin < end) rest.push_back(cut_part(part, begin, end));
  }
  return rest;
}

}  // namespace penstock
