// Reading the zip format: which record is what.
#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/name_hash.h"
#include "format/torch_file.h"
#include "format/torch_globals.h"
#include "format/zip.h"

namespace penstock::torch {
namespace {

constexpr std::string_view kPickleName = "data.pkl";
constexpr std::uint64_t kMaxPickle = 1 * kGiB;
// Of one that is compressed, so that a small file can't take much memory: pickles shrink to a tenth.
constexpr std::uint64_t kFreeInflated = 1 * kMiB;
constexpr std::uint64_t kMostInflation = 32;

// The small records beside the pickle, each of which takes a few bytes.
constexpr std::array<std::string_view, 5> kSmallRecords = {"byteorder", ".format_version", ".storage_alignment",
                                                           "version", ".data/serialization_id"};
constexpr std::uint64_t kMaxSmallRecord = 4 * kKiB;

// Every record of a checkpoint lies in one folder, whose name is free.
std::string find_folder(const std::vector<zip::Record>& records, std::string_view path) {
  std::string folder;
  bool found = false;
  for (const zip::Record& record : records) {
    const std::size_t slash = record.name.find('/');
    if (slash == std::string::npos || record.name.substr(slash + 1) != kPickleName) continue;
    if (found) throw_format(path, "the archive has two records called {}", kPickleName);
    folder = record.name.substr(0, slash + 1);
    found = true;
  }
  if (found) return folder;
  throw_unsupported(path, "a zip archive, but not a torch checkpoint: it has no {}", kPickleName);
}

class ZipReader {
 public:
  explicit ZipReader(const ByteSource& source) : source_(source), path_(source.path()), records_(zip::parse(source)) {
    folder_ = find_folder(records_, path_);
    for (const zip::Record& record : records_) {
      if (record.name.starts_with(folder_)) {
        by_name_.emplace(std::string_view(record.name).substr(folder_.size()), &record);
      }
    }
  }

  Checkpoint read() {
    for (const std::string_view name : kSmallRecords) check_small_record(name);
    Checkpoint checkpoint;
    checkpoint.format = kZipFormat;
    checkpoint.is_program = by_name_.contains("constants.pkl");  // what torch.load knows them by
    const zip::Record& record = *by_name_.at(kPickleName);
    if (record.nbytes > kMaxPickle)
      throw_format(path_, "{} takes {} bytes, more than the limit of {}", kPickleName, record.nbytes, kMaxPickle);
    if (record.deflated && record.nbytes > kFreeInflated + kMostInflation * record.stored_nbytes) {
      throw_format(path_, "{} takes {} bytes, compressed {}: no pickle of weights is like that", kPickleName,
                   record.nbytes, record.stored_nbytes);
    }
    checkpoint.text = std::make_unique<const std::string>(read_text(record));
    check_checksum(record, *checkpoint.text);
    pickle::Options options{path_, kPickleName};
    options.knows = knows_global;
    options.refuses_foreign = false;
    checkpoint.tree = std::make_unique<const Tree>(pickle::parse(*checkpoint.text, options), path_);
    for (const Storage& storage : checkpoint.tree->storages()) place(find_record(storage), checkpoint);
    return checkpoint;
  }

 private:
  std::string read_text(const zip::Record& record) const {
    std::string text;
    text.reserve(static_cast<std::size_t>(record.nbytes));
    zip::read_record(source_, record, [&](std::span<const std::byte> bytes) {
      text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    });
    return text;
  }

  // A flipped bit in a shape or an offset may well make sense. The storages' checksums are for verify().
  void check_checksum(const zip::Record& record, std::string_view text) const {
    const std::uint32_t found = crc32(std::as_bytes(std::span(text)));
    if (record.crc32 == 0 || found == record.crc32) return;
    throw_format(path_, "record {} is corrupt: its CRC-32 is {:08x}, the file says {:08x}", in_quotes(record.name),
                 found, record.crc32);
  }

  // Older versions of torch have fewer of them.
  void check_small_record(std::string_view name) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return;
    const zip::Record& record = *found->second;
    if (record.nbytes > kMaxSmallRecord) {
      throw_format(path_, "record {} has {} bytes, more than the limit of {}", in_quotes(record.name), record.nbytes,
                   kMaxSmallRecord);
    }
    const std::string text = read_text(record);
    check_checksum(record, text);
    if (name == "byteorder") check_byte_order(text);
  }

  void check_byte_order(std::string_view order) const {
    if (order == "little") return;
    constexpr std::string_view kMessage = "its byte order is {}, and only \"little\" can be read";
    if (order == "big") throw_unsupported(path_, kMessage, in_quotes(order));
    throw_format(path_, kMessage, in_quotes(order));
  }

  const zip::Record& find_record(const Storage& storage) const {
    const auto record = by_name_.find("data/" + storage.key);
    if (record == by_name_.end()) throw_format(path_, "storage {} has no record", in_quotes(storage.key));
    if (record->second->nbytes != storage.nbytes()) {
      throw_format(path_, "record {} has {} bytes, but its storage takes {}", in_quotes(record->second->name),
                   record->second->nbytes, storage.nbytes());
    }
    return *record->second;
  }

  static void place(const zip::Record& record, Checkpoint& checkpoint) {
    checkpoint.storage_is_packed.push_back(record.deflated);
    if (!record.deflated) {
      checkpoint.storage_offsets.push_back(record.offset);
      return;
    }
    const std::uint64_t offset = next_packed_offset(checkpoint.packed);
    checkpoint.storage_offsets.push_back(offset);
    checkpoint.packed.push_back({"record " + in_quotes(record.name), offset, record.nbytes, record.crc32,
                                 [record](const ByteSource& source, const PackedBytes::Take& take) {
                                   zip::read_record(source, record, take);
                                 }});
  }

  const ByteSource& source_;
  std::string_view path_;
  std::vector<zip::Record> records_;
  std::string folder_;
  NameMap<const zip::Record*> by_name_;  // views of the records' names
};

}  // namespace

bool looks_like_zip(const ByteSource& source) {
  return zip::looks_like(source);
}

Checkpoint read_zip(const ByteSource& source) {
  return ZipReader(source).read();
}

Layout parse_zip(const ByteSource& source) {
  return make_layout(read_zip(source), source.path());
}

Checkpoint read_checkpoint(const ByteSource& source) {
  if (looks_like_zip(source)) return read_zip(source);
  if (looks_like_legacy(source)) return read_legacy(source);
  throw_unsupported(source.path(), "not a torch checkpoint");
}

Layout parse_storages(const ByteSource& source) {
  return make_storage_layout(read_checkpoint(source));
}

}  // namespace penstock::torch
