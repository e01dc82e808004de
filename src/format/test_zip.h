// For tests: zip archives written by hand, each field of which can be made to lie.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/checksum.h"
#include "format/zip_records.h"

namespace penstock::test {

// Little-endian, of as many bytes as the type has.
template <typename T>
std::string little(T value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i)
    bytes += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
  return bytes;
}

enum class Descriptor { kNone, kNarrow, kWide };

struct ZipEntry {
  std::string name;
  std::string data;

  Descriptor descriptor = Descriptor::kNone;
  std::uint16_t flags = 0;  // beside those that follow from the descriptor
  std::uint16_t method = 0;
  std::optional<std::uint32_t> inflated_nbytes;  // of one whose data is compressed
  std::string gap;                               // bytes after it that belong to nothing

  // What the local header says, where it is not the truth.
  std::optional<std::string> local_name;
  std::optional<std::uint16_t> local_flags;
  std::optional<std::uint32_t> local_crc32;
  std::optional<std::uint32_t> local_nbytes;
  std::string local_extra;

  // The same of the central directory.
  std::optional<std::uint32_t> central_crc32;
  std::optional<std::uint32_t> central_nbytes;
  std::optional<std::uint32_t> central_compressed;
  std::optional<std::uint32_t> central_offset;
  std::string central_extra;
  std::string central_comment;
  std::uint16_t central_disk = 0;
  std::uint32_t central_attributes = 0;

  std::optional<std::uint64_t> descriptor_nbytes;
};

struct ZipEnd {
  bool wide = false;  // with a zip64 record and locator
  std::string before_directory;
  std::string after_directory;
  std::string comment;
  std::string trailing;
  std::optional<std::uint16_t> count;
  std::optional<std::uint64_t> wide_count;
  std::optional<std::uint32_t> offset;
  std::optional<std::uint64_t> wide_at;
  std::uint16_t disk = 0;
};

inline std::string local_part(const ZipEntry& entry, std::uint16_t flags, std::uint32_t crc) {
  const bool described = entry.descriptor != Descriptor::kNone;
  const auto nbytes = static_cast<std::uint32_t>(entry.data.size());
  const std::string name = entry.local_name.value_or(entry.name);
  std::string file = little(zip::kLocalSignature) + little(std::uint16_t{0}) +
                     little(entry.local_flags.value_or(flags)) + little(entry.method) + little(std::uint32_t{0});
  file += little(entry.local_crc32.value_or(described ? 0 : crc));
  file += little(entry.local_nbytes.value_or(described ? 0 : nbytes)) +
          little(entry.local_nbytes.value_or(described ? 0 : entry.inflated_nbytes.value_or(nbytes)));
  file +=
      little(static_cast<std::uint16_t>(name.size())) + little(static_cast<std::uint16_t>(entry.local_extra.size()));
  file += name + entry.local_extra + entry.data;
  const std::uint64_t said = entry.descriptor_nbytes.value_or(entry.data.size());
  if (described) file += little(zip::kDescriptorSignature) + little(crc);
  if (entry.descriptor == Descriptor::kNarrow) {
    file += little(static_cast<std::uint32_t>(said)) +
            little(entry.inflated_nbytes.value_or(static_cast<std::uint32_t>(said)));
  }
  if (entry.descriptor == Descriptor::kWide) file += little(said) + little(said);
  return file + entry.gap;
}

inline std::string central_part(const ZipEntry& entry, std::uint16_t flags, std::uint32_t crc, std::uint64_t offset) {
  const auto nbytes = static_cast<std::uint32_t>(entry.data.size());
  std::string part = little(zip::kCentralSignature) + little(std::uint32_t{0}) + little(flags) + little(entry.method) +
                     little(std::uint32_t{0}) + little(entry.central_crc32.value_or(crc));
  part += little(entry.central_compressed.value_or(entry.central_nbytes.value_or(nbytes))) +
          little(entry.central_nbytes.value_or(entry.inflated_nbytes.value_or(nbytes)));
  part += little(static_cast<std::uint16_t>(entry.name.size())) +
          little(static_cast<std::uint16_t>(entry.central_extra.size())) +
          little(static_cast<std::uint16_t>(entry.central_comment.size())) + little(entry.central_disk);
  part += little(std::uint16_t{0}) + little(entry.central_attributes) +
          little(entry.central_offset.value_or(static_cast<std::uint32_t>(offset)));
  return part + entry.name + entry.central_extra + entry.central_comment;
}

inline std::string end_part(const ZipEnd& end, std::uint64_t offset, std::uint64_t nbytes, std::uint64_t count) {
  std::string part;
  if (end.wide) {
    const std::uint64_t at = offset + nbytes + end.after_directory.size();
    const std::uint64_t said = end.wide_count.value_or(count);
    part += little(zip::kEnd64Signature) + little(std::uint64_t{44}) + little(std::uint32_t{0x002d031e}) +
            little(std::uint64_t{0}) + little(said) + little(said) + little(nbytes) + little(offset);
    part += little(zip::kLocatorSignature) + little(std::uint32_t{0}) + little(end.wide_at.value_or(at)) +
            little(std::uint32_t{1});
  }
  const auto narrow = end.count.value_or(static_cast<std::uint16_t>(count));
  part += little(zip::kEndSignature) + little(end.disk) + little(end.disk) + little(narrow) + little(narrow);
  part += little(static_cast<std::uint32_t>(nbytes)) + little(end.offset.value_or(static_cast<std::uint32_t>(offset)));
  return part + little(static_cast<std::uint16_t>(end.comment.size())) + end.comment + end.trailing;
}

inline std::string zip_file(const std::vector<ZipEntry>& entries, const ZipEnd& end = {}) {
  std::string file;
  std::string directory;
  for (const ZipEntry& entry : entries) {
    const std::uint32_t crc = crc32(std::as_bytes(std::span(entry.data)));
    const std::uint16_t described = entry.descriptor == Descriptor::kNone ? 0 : zip::kDescriptorFlag;
    const auto flags = static_cast<std::uint16_t>(entry.flags | described);
    directory += central_part(entry, flags, crc, file.size());
    file += local_part(entry, flags, crc);
  }
  file += end.before_directory;
  const std::uint64_t offset = file.size();
  file += directory + end.after_directory;
  return file + end_part(end, offset, directory.size(), entries.size());
}

}  // namespace penstock::test
