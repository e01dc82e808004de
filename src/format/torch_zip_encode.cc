// The zip of torch.save, byte for byte: order of the records, their headers, padding and descriptors.
#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <cstring>
#include <numeric>
#include <string>
#include <unordered_set>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/error.h"
#include "format/torch_encode.h"
#include "format/torch_pickle.h"
#include "format/zip_records.h"

namespace penstock::torch {
namespace {

constexpr std::uint64_t kClassicAlignment = 64;
constexpr std::uint64_t kLargeAlignment = 4096;
constexpr std::uint64_t kWorthAligning = 64 * kKiB;  // mean size of a storage
constexpr std::uint64_t kMostPadding = 32768;        // its length is a 16-bit field

// Little-endian fields.
class Bytes {
 public:
  template <std::integral T>
  Bytes& add(T value) {
    return add(std::string_view(reinterpret_cast<const char*>(&value), sizeof value));
  }
  Bytes& add(std::string_view text) {
    const std::size_t before = bytes.size();
    bytes.resize(before + text.size());
    if (!text.empty()) std::memcpy(bytes.data() + before, text.data(), text.size());
    return *this;
  }
  Bytes& pad(std::uint64_t count, char character) {
    bytes.insert(bytes.end(), static_cast<std::size_t>(count), static_cast<std::byte>(character));
    return *this;
  }

  std::vector<std::byte> bytes;
};

struct Entry {
  std::string name;
  std::uint64_t header_offset = 0;
  std::uint64_t nbytes = 0;
  std::uint32_t crc32 = 0;

  bool is_wide() const { return nbytes >= zip::kNarrow32 || header_offset >= zip::kNarrow32; }
};

// How torch mixes hashes.
std::uint64_t mix(std::uint64_t seed, std::uint64_t value) {
  return seed ^ (value + 0x9e3779b9 + (seed << 6) + (seed >> 2));
}

class ZipEncoder {
 public:
  ZipEncoder(std::span<const TensorSpec> specs, const EncodeOptions& options, std::span<const std::uint32_t> checksums)
      : specs_(specs), options_(options), checksums_(checksums), alignment_(choose_alignment()) {
    if ((alignment_ & (alignment_ - 1)) != 0 || alignment_ > kMostPadding) {
      throw_argument("an alignment of {}: expected a power of two up to {}", alignment_, kMostPadding);
    }
  }

  FilePlan encode() {
    add_text("data.pkl", options_.pickle ? *options_.pickle : pickle_state_dict(specs_, Flavour::kZip));
    add_text(".format_version", "1");
    add_text(".storage_alignment", std::to_string(alignment_));
    add_text("byteorder", "little");
    plan_.prefix = std::move(pending_.bytes);
    pending_ = {};
    for (std::size_t i = 0; i < specs_.size(); ++i) add_storage(i);
    const std::uint64_t suffix_at = cursor_ - pending_.bytes.size();
    add_text("version", "3\n");
    add_text(".data/serialization_id", serialization_id());
    add_directory();
    plan_.suffix = std::move(pending_.bytes);
    plan_.file_size = suffix_at + plan_.suffix.size();
    plan_.order.resize(specs_.size());
    std::iota(plan_.order.begin(), plan_.order.end(), 0U);
    // As sort_by_offset has it: an empty storage lies where the next one does not begin, so numbers are in order.
    return std::move(plan_);
  }

 private:
  std::uint64_t choose_alignment() const {
    if (options_.alignment != 0) return options_.alignment;
    std::uint64_t nbytes = 0;
    for (const TensorSpec& spec : specs_) nbytes += spec.nbytes;
    return nbytes / std::max<std::size_t>(specs_.size(), 1) >= kWorthAligning ? kLargeAlignment : kClassicAlignment;
  }

  void add_text(std::string_view name, std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    Entry& entry = begin(name, text.size());
    entry.crc32 = options_.checksums ? crc32(bytes) : 0;
    pending_.add(text);
    cursor_ += text.size();
    end(entry);
  }

  void add_storage(std::size_t number) {
    Entry& entry = begin(fmt::format("data/{}", number), specs_[number].nbytes);
    entry.crc32 = checksums_.empty() ? 0 : checksums_[number];
    plan_.offsets.push_back(cursor_);
    // What came since the last storage lies before this one.
    flush_literal();
    const auto next = checked_add(cursor_, specs_[number].nbytes);
    if (!next) throw_argument("the file would be larger than 2^64 bytes");
    cursor_ = *next;
    end(entry);
  }

  void flush_literal() {
    if (pending_.bytes.empty()) return;
    plan_.literals.push_back({cursor_ - pending_.bytes.size(), std::move(pending_.bytes)});
    pending_ = {};
  }

  // The local header, padded so that the data is aligned.
  Entry& begin(std::string_view name, std::uint64_t nbytes) {
    Entry& entry = entries_.emplace_back();
    entry.name = fmt::format("{}/{}", options_.folder, name);
    if (entry.name.size() > zip::kNarrow16) throw_argument("the name {} is too long", in_quotes(entry.name));
    entry.header_offset = cursor_;
    entry.nbytes = nbytes;
    Bytes wide;
    if (entry.is_wide()) {
      Bytes values;
      if (nbytes >= zip::kNarrow32) values.add(nbytes).add(std::uint64_t{0});  // the compressed size is left 0
      if (entry.header_offset >= zip::kNarrow32) values.add(entry.header_offset);
      wide.add(zip::kZip64Id).add(static_cast<std::uint16_t>(values.bytes.size()));
      wide.bytes.insert(wide.bytes.end(), values.bytes.begin(), values.bytes.end());
    }
    constexpr std::uint64_t kPaddingHeader = 4;
    const std::uint64_t start = cursor_ + zip::kLocalBytes + entry.name.size() + wide.bytes.size() + kPaddingHeader;
    const std::uint64_t padding = align_up(start, alignment_) - start;
    const std::size_t before = pending_.bytes.size();
    pending_.add(zip::kLocalSignature).add(std::uint16_t{0}).add(flags(entry)).add(zip::kStored);
    pending_.add(std::uint32_t{0});                                              // time
    pending_.add(std::uint32_t{0}).add(std::uint32_t{0}).add(std::uint32_t{0});  // in the descriptor
    pending_.add(static_cast<std::uint16_t>(entry.name.size()));
    pending_.add(static_cast<std::uint16_t>(wide.bytes.size() + kPaddingHeader + padding));
    pending_.add(entry.name);
    pending_.bytes.insert(pending_.bytes.end(), wide.bytes.begin(), wide.bytes.end());
    pending_.add(std::string_view("FB")).add(static_cast<std::uint16_t>(padding)).pad(padding, 'Z');
    cursor_ += pending_.bytes.size() - before;
    return entry;
  }

  static std::uint16_t flags(const Entry& entry) {
    return static_cast<std::uint16_t>(zip::kUtf8Flag | (entry.nbytes > 0 ? zip::kDescriptorFlag : 0));
  }

  // The descriptor.
  void end(const Entry& entry) {
    names_.insert(entry.name.substr(options_.folder.size() + 1));
    if (entry.nbytes == 0) return;
    identity_ = mix(identity_, entry.crc32);
    const std::size_t before = pending_.bytes.size();
    pending_.add(zip::kDescriptorSignature).add(entry.crc32);
    if (entry.is_wide()) {
      pending_.add(entry.nbytes).add(entry.nbytes);
    } else {
      pending_.add(static_cast<std::uint32_t>(entry.nbytes)).add(static_cast<std::uint32_t>(entry.nbytes));
    }
    cursor_ += pending_.bytes.size() - before;
  }

  // A fingerprint that torch logs: of the names, in the order of a hash table, and of the checksums.
  std::string serialization_id() const {
    std::uint64_t names = 0;
    for (const std::string& name : names_) names = mix(names, std::hash<std::string>{}(name));
    return fmt::format("{:020}{:020}", names, identity_);
  }

  void add_directory() {
    const std::uint64_t directory_at = cursor_;
    const std::size_t before = pending_.bytes.size();
    for (const Entry& entry : entries_) add_central(entry);
    const std::uint64_t nbytes = pending_.bytes.size() - before;
    const std::uint64_t end_at = directory_at + nbytes;
    const std::uint64_t count = entries_.size();
    pending_.add(zip::kEnd64Signature).add(std::uint64_t{zip::kEnd64Bytes - 12});
    pending_.add(std::uint16_t{0x031e}).add(std::uint16_t{45});
    pending_.add(std::uint32_t{0}).add(std::uint32_t{0}).add(count).add(count).add(nbytes).add(directory_at);
    pending_.add(zip::kLocatorSignature).add(std::uint32_t{0}).add(end_at).add(std::uint32_t{1});
    const auto narrow_count = static_cast<std::uint16_t>(std::min<std::uint64_t>(count, zip::kNarrow16));
    pending_.add(zip::kEndSignature).add(std::uint16_t{0}).add(std::uint16_t{0}).add(narrow_count).add(narrow_count);
    pending_.add(narrow(nbytes)).add(narrow(directory_at)).add(std::uint16_t{0});
  }

  static std::uint32_t narrow(std::uint64_t value) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(value, zip::kNarrow32));
  }

  void add_central(const Entry& entry) {
    Bytes wide;
    if (entry.is_wide()) {
      Bytes values;
      if (entry.nbytes >= zip::kNarrow32) values.add(entry.nbytes).add(entry.nbytes);
      if (entry.header_offset >= zip::kNarrow32) values.add(entry.header_offset);
      wide.add(zip::kZip64Id).add(static_cast<std::uint16_t>(values.bytes.size()));
      wide.bytes.insert(wide.bytes.end(), values.bytes.begin(), values.bytes.end());
    }
    pending_.add(zip::kCentralSignature)
        .add(std::uint16_t{0})
        .add(std::uint16_t{0})
        .add(flags(entry))
        .add(zip::kStored);
    pending_.add(std::uint32_t{0}).add(entry.crc32).add(narrow(entry.nbytes)).add(narrow(entry.nbytes));
    pending_.add(static_cast<std::uint16_t>(entry.name.size())).add(static_cast<std::uint16_t>(wide.bytes.size()));
    pending_.add(std::uint16_t{0}).add(std::uint16_t{0}).add(std::uint16_t{0}).add(std::uint32_t{0});
    pending_.add(narrow(entry.header_offset)).add(entry.name);
    pending_.bytes.insert(pending_.bytes.end(), wide.bytes.begin(), wide.bytes.end());
  }

  std::span<const TensorSpec> specs_;
  const EncodeOptions& options_;
  std::span<const std::uint32_t> checksums_;
  const std::uint64_t alignment_;
  std::uint64_t cursor_ = 0;  // in the file
  Bytes pending_;             // what lies before it and is in no literal yet
  std::vector<Entry> entries_;
  std::unordered_set<std::string> names_;
  std::uint64_t identity_ = 0;
  FilePlan plan_;
};

}  // namespace

FilePlan encode_zip(std::span<const TensorSpec> specs, const EncodeOptions& options,
                    std::span<const std::uint32_t> checksums) {
  return ZipEncoder(specs, options, checksums).encode();
}

}  // namespace penstock::torch
