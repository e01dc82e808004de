#include "format/zip.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/bytes.h"
#include "base/error.h"
#include "base/inflate.h"
#include "base/json.h"
#include "format/zip_records.h"

namespace penstock::zip {
namespace {

constexpr std::uint64_t kMaxDirectory = 512 * kMiB;

// Little-endian fields, one after the other.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T take() {
    T value{};
    if (bytes_.size() < sizeof value) {
      ended_ = true;
      bytes_ = {};
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }

  std::string_view text(std::size_t length) {
    if (bytes_.size() < length) {
      ended_ = true;
      length = bytes_.size();
    }
    const std::string_view taken = bytes_.substr(0, length);
    bytes_.remove_prefix(length);
    return taken;
  }

  bool ended() const { return ended_; }  // something was taken that is not there
  bool empty() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool ended_ = false;
};

// Where the central directory lies.
struct Directory {
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
  std::uint64_t count = 0;
};

// What a header says of a record.
struct Header {
  std::uint16_t flags = 0;
  std::uint16_t method = 0;
  std::uint32_t crc32 = 0;
  std::uint64_t compressed = 0;
  std::uint64_t nbytes = 0;
  std::uint64_t offset = 0;  // of the local header; central only
  std::string name;
  std::uint64_t length = 0;  // of the header itself, with name and extra field
};

class Parser {
 public:
  explicit Parser(const ByteSource& source) : source_(source), path_(source.path()) {}

  std::vector<Record> run() {
    const Directory directory = find_directory();
    std::vector<Header> headers = read_directory(directory);
    std::sort(headers.begin(), headers.end(), [](const Header& a, const Header& b) { return a.offset < b.offset; });
    refuse_duplicates(headers);
    if (!headers.empty() && headers.front().offset != 0) {
      throw_format(path_, "{} bytes lie before the first record", headers.front().offset);
    }
    std::vector<Record> records;
    records.reserve(headers.size());
    for (std::size_t i = 0; i < headers.size(); ++i) {
      const std::uint64_t limit = i + 1 < headers.size() ? headers[i + 1].offset : directory.offset;
      records.push_back(check_record(headers[i], limit));
    }
    return records;
  }

 private:
  std::string read(std::uint64_t offset, std::uint64_t nbytes) {
    if (nbytes <= kWindow && (offset < window_at_ || offset + nbytes > window_at_ + window_.size())) {
      fill_window(offset, nbytes);
    }
    if (offset >= window_at_ && offset + nbytes <= window_at_ + window_.size()) {
      return window_.substr(static_cast<std::size_t>(offset - window_at_), static_cast<std::size_t>(nbytes));
    }
    std::string bytes(static_cast<std::size_t>(nbytes), '\0');
    source_.read(offset, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  // The headers of small records lie close together and are read many at a time; those of large ones a page at a time.
  void fill_window(std::uint64_t offset, std::uint64_t nbytes) {
    const bool follows = offset >= window_at_ && offset < window_at_ + window_.size() + kWindow;
    const std::uint64_t length = std::max(nbytes, follows ? kWindow : kSmallWindow);
    if (offset > source_.size() || nbytes > source_.size() - offset) return;  // the read itself says so
    window_.resize(static_cast<std::size_t>(std::min(length, source_.size() - offset)));
    window_at_ = offset;
    source_.read(offset, std::as_writable_bytes(std::span(window_)));
  }

  Directory find_directory() {
    const std::uint64_t size = source_.size();
    if (size < kEndBytes) throw_format(path_, "{} bytes are too few for a zip archive", size);
    const std::uint64_t end_at = size - kEndBytes;
    const std::string end_bytes = read(end_at, kEndBytes);
    Fields end(end_bytes);
    if (end.take<std::uint32_t>() != kEndSignature) {
      throw_format(
          path_,
          "byte {}: expected the end record of a zip archive: the file is truncated, or bytes follow the archive",
          end_at);
    }
    const auto disk = end.take<std::uint16_t>();
    const auto directory_disk = end.take<std::uint16_t>();
    const auto count_here = end.take<std::uint16_t>();
    const auto count = end.take<std::uint16_t>();
    Directory directory;
    directory.nbytes = end.take<std::uint32_t>();
    directory.offset = end.take<std::uint32_t>();
    directory.count = count;
    if (end.take<std::uint16_t>() != 0) throw_format(path_, "byte {}: the archive has a comment", end_at);
    if (disk != 0 || directory_disk != 0 || count_here != count) throw_format(path_, "the archive has several volumes");
    std::uint64_t directory_end = end_at;
    if (end_at >= kLocatorBytes + kEnd64Bytes) {
      const std::string bytes = read(end_at - kLocatorBytes, kLocatorBytes);
      if (Fields(bytes).take<std::uint32_t>() == kLocatorSignature) {
        directory_end = end_at - kLocatorBytes - kEnd64Bytes;
        directory = merge_end64(bytes, directory, directory_end);
      }
    }
    if (directory.nbytes > directory_end || directory.offset != directory_end - directory.nbytes) {
      throw_format(path_, "the central directory is said to take {} bytes at {}, but the end record is at {}",
                   directory.nbytes, directory.offset, directory_end);
    }
    if (directory.nbytes > kMaxDirectory) {
      throw_format(path_, "the central directory takes {} bytes, more than the limit of {}", directory.nbytes,
                   kMaxDirectory);
    }
    if (directory.count > directory.nbytes / kCentralBytes) {
      throw_format(path_, "{} records can't be listed in {} bytes", directory.count, directory.nbytes);
    }
    return directory;
  }

  // A field of the end record that is not all ones must agree with the zip64 one.
  Directory merge_end64(const std::string& locator_bytes, const Directory& narrow, std::uint64_t expected_at) {
    Fields locator(locator_bytes);
    locator.take<std::uint32_t>();
    const auto disk = locator.take<std::uint32_t>();
    const auto at = locator.take<std::uint64_t>();
    const auto disks = locator.take<std::uint32_t>();
    if (disk != 0 || disks > 1) throw_format(path_, "the archive has several volumes");
    if (at != expected_at) {
      throw_format(path_, "the zip64 end record is said to be at {}, expected {}", at, expected_at);
    }
    const std::string bytes = read(at, kEnd64Bytes);
    Fields end(bytes);
    if (end.take<std::uint32_t>() != kEnd64Signature || end.take<std::uint64_t>() != kEnd64Bytes - 12) {
      throw_format(path_, "byte {}: expected a zip64 end record", at);
    }
    end.take<std::uint16_t>();  // made by
    end.take<std::uint16_t>();  // needed
    const auto this_disk = end.take<std::uint32_t>();
    const auto directory_disk = end.take<std::uint32_t>();
    const auto count_here = end.take<std::uint64_t>();
    Directory directory;
    directory.count = end.take<std::uint64_t>();
    directory.nbytes = end.take<std::uint64_t>();
    directory.offset = end.take<std::uint64_t>();
    if (this_disk != 0 || directory_disk != 0 || count_here != directory.count) {
      throw_format(path_, "the archive has several volumes");
    }
    const bool agree = (narrow.count == kNarrow16 || narrow.count == directory.count) &&
                       (narrow.nbytes == kNarrow32 || narrow.nbytes == directory.nbytes) &&
                       (narrow.offset == kNarrow32 || narrow.offset == directory.offset);
    if (!agree) throw_format(path_, "the two end records disagree");
    return directory;
  }

  std::vector<Header> read_directory(const Directory& directory) {
    const std::string bytes = read(directory.offset, directory.nbytes);
    Fields fields(bytes);
    std::vector<Header> headers;
    headers.reserve(static_cast<std::size_t>(directory.count));
    for (std::uint64_t i = 0; i < directory.count; ++i) headers.push_back(take_central(fields, i));
    if (!fields.empty()) throw_format(path_, "bytes follow the {} entries of the central directory", directory.count);
    return headers;
  }

  Header take_central(Fields& fields, std::uint64_t number) const {
    if (fields.take<std::uint32_t>() != kCentralSignature) {
      throw_format(path_, "entry {} of the central directory does not start as one", number);
    }
    fields.take<std::uint32_t>();  // versions
    Header header;
    header.flags = fields.take<std::uint16_t>();
    header.method = fields.take<std::uint16_t>();
    fields.take<std::uint32_t>();  // time
    header.crc32 = fields.take<std::uint32_t>();
    header.compressed = fields.take<std::uint32_t>();
    header.nbytes = fields.take<std::uint32_t>();
    const auto name_length = fields.take<std::uint16_t>();
    const auto extra_length = fields.take<std::uint16_t>();
    const auto comment_length = fields.take<std::uint16_t>();
    const auto disk = fields.take<std::uint16_t>();
    fields.take<std::uint16_t>();  // internal attributes
    const auto attributes = fields.take<std::uint32_t>();
    header.offset = fields.take<std::uint32_t>();
    header.name = fields.text(name_length);
    const std::string_view extra = fields.text(extra_length);
    fields.text(comment_length);
    if (fields.ended()) throw_format(path_, "the central directory ends within entry {}", number);
    if (disk != 0) throw_format(path_, "the archive has several volumes");
    if (find_invalid_utf8(header.name)) throw_format(path_, "entry {} has a name that is not valid UTF-8", number);
    if (header.name.find('\0') != std::string::npos) {
      throw_format(path_, "record {} has a NUL in its name", in_quotes(header.name));
    }
    take_zip64(header, extra, /*central=*/true);
    // torch's reader gives memory that it never wrote for such a record.
    const bool is_directory = header.name.ends_with('/') || (attributes & kDirectoryAttribute) != 0;
    if (is_directory && header.nbytes > 0) {
      throw_format(path_, "record {} is marked as a directory, and has {} bytes", in_quotes(header.name),
                   header.nbytes);
    }
    return header;
  }

  // The zip64 extra field has the values that are all ones in the header, in this order.
  void take_zip64(Header& header, std::string_view extra, bool central) const {
    Fields fields(extra);
    bool seen = false;
    while (!fields.empty()) {
      const auto id = fields.take<std::uint16_t>();
      const auto length = fields.take<std::uint16_t>();
      Fields body(fields.text(length));
      if (fields.ended()) {
        throw_format(path_, "record {}: its extra field is cut off", in_quotes(header.name));
      }
      if (id != kZip64Id) continue;
      if (seen) throw_format(path_, "record {} has two zip64 fields", in_quotes(header.name));
      seen = true;
      if (header.nbytes == kNarrow32) header.nbytes = body.take<std::uint64_t>();
      if (header.compressed == kNarrow32) header.compressed = body.take<std::uint64_t>();
      if (central && header.offset == kNarrow32) header.offset = body.take<std::uint64_t>();
      if (body.ended()) throw_format(path_, "record {}: its zip64 field is too short", in_quotes(header.name));
    }
  }

  // Once its local header has said the same: a flipped bit is damage.
  void refuse_unsupported(const Header& header) const {
    const std::string name = in_quotes(header.name);
    if ((header.flags & kEncryptedFlag) != 0) throw_unsupported(path_, "record {} is encrypted", name);
    if (header.method != kStored && header.method != kDeflated) {
      throw_unsupported(path_, "record {} is compressed (method {}), which this version can't read", name,
                        header.method);
    }
    if (header.method == kDeflated && header.nbytes > most_inflated(header.compressed)) {
      throw_format(path_, "record {} can't have {} bytes: deflate does not make them of {}", name, header.nbytes,
                   header.compressed);
    }
    if (header.method == kStored && header.compressed != header.nbytes) {
      throw_format(path_, "record {} is stored, but takes {} bytes for {}", name, header.compressed, header.nbytes);
    }
  }

  // torch looks names up without regard to case.
  void refuse_duplicates(const std::vector<Header>& headers) const {
    std::vector<std::string> lower;
    lower.reserve(headers.size());
    for (const Header& header : headers) lower.push_back(in_lower_case(header.name));
    const std::vector<std::string_view> names(lower.begin(), lower.end());
    const auto duplicate = find_duplicate(names);
    if (!duplicate) return;
    const std::string& first = headers[duplicate->first].name;
    const std::string& second = headers[duplicate->second].name;
    if (first == second) throw_format(path_, "record {} appears twice", in_quotes(first));
    throw_format(path_, "records {} and {} differ in nothing but case", in_quotes(first), in_quotes(second));
  }

  static std::string in_lower_case(std::string text) {
    for (char& character : text) {
      if (character >= 'A' && character <= 'Z') character = static_cast<char>(character - 'A' + 'a');
    }
    return text;
  }

  // `limit`: where the next record, or the central directory, starts.
  Record check_record(const Header& central, std::uint64_t limit) {
    const std::string name = in_quotes(central.name);
    const std::uint64_t room = limit > central.offset ? limit - central.offset : 0;
    if (room < kLocalBytes + central.name.size()) {
      throw_format(path_, "record {}: its local header at {} overlaps what follows at {}", name, central.offset, limit);
    }
    const Header local = read_local(central, room);
    refuse_unsupported(central);
    const std::uint64_t left = room - local.length;
    if (central.compressed > left) {
      throw_format(path_, "record {}: its {} bytes at {} overlap what follows at {}", name, central.compressed,
                   central.offset + local.length, limit);
    }
    Record record{central.name,  central.offset,     central.offset + local.length, central.nbytes,
                  central.crc32, central.compressed, central.method == kDeflated};
    if ((central.flags & kDescriptorFlag) != 0) {
      check_descriptor(record, left - central.compressed);
    } else if (left != central.compressed) {
      throw_format(path_, "record {}: {} bytes that belong to nothing follow it", name, left - central.compressed);
    }
    return record;
  }

  Header read_local(const Header& central, std::uint64_t room) {
    const std::string name = in_quotes(central.name);
    const std::string fixed = read(central.offset, kLocalBytes);
    Fields fields(fixed);
    if (fields.take<std::uint32_t>() != kLocalSignature) {
      throw_format(path_, "byte {}: expected the local header of record {}", central.offset, name);
    }
    fields.take<std::uint16_t>();  // version
    Header local;
    local.flags = fields.take<std::uint16_t>();
    local.method = fields.take<std::uint16_t>();
    fields.take<std::uint32_t>();  // time
    local.crc32 = fields.take<std::uint32_t>();
    local.compressed = fields.take<std::uint32_t>();
    local.nbytes = fields.take<std::uint32_t>();
    const auto name_length = fields.take<std::uint16_t>();
    const auto extra_length = fields.take<std::uint16_t>();
    local.length = kLocalBytes + std::uint64_t{name_length} + extra_length;
    if (local.length > room) throw_format(path_, "record {}: its local header overlaps what follows", name);
    const std::string rest = read(central.offset + kLocalBytes, local.length - kLocalBytes);
    local.name = rest.substr(0, name_length);
    if (local.name != central.name) {
      throw_format(path_, "record {}: its local header calls it {}", name, in_quotes(local.name));
    }
    take_zip64(local, std::string_view(rest).substr(name_length), /*central=*/false);
    // With a descriptor, what the local header leaves open is 0; torch leaves the compressed size open in any case.
    const bool described = (central.flags & kDescriptorFlag) != 0;
    const auto agrees = [&](std::uint64_t here, std::uint64_t there) {
      return here == there || (described && here == 0);
    };
    const bool agree = local.flags == central.flags && local.method == central.method &&
                       agrees(local.crc32, central.crc32) && agrees(local.nbytes, central.nbytes) &&
                       agrees(local.compressed, central.compressed);
    if (!agree) throw_format(path_, "record {}: its local header and the central directory disagree", name);
    return local;
  }

  // `room`: the bytes up to what follows, all of which the descriptor takes.
  void check_descriptor(const Record& record, std::uint64_t room) {
    const std::string name = in_quotes(record.name);
    if (room != kDescriptorBytes && room != kDescriptor64Bytes) {
      throw_format(path_, "record {}: {} bytes follow it, expected a descriptor of {} or {}", name, room,
                   kDescriptorBytes, kDescriptor64Bytes);
    }
    const std::string bytes = read(record.offset + record.stored_nbytes, room);
    Fields fields(bytes);
    const bool found =
        fields.take<std::uint32_t>() == kDescriptorSignature && fields.take<std::uint32_t>() == record.crc32;
    const auto take_size = [&] {
      return room == kDescriptorBytes ? fields.take<std::uint32_t>() : fields.take<std::uint64_t>();
    };
    const std::uint64_t compressed = take_size();
    const std::uint64_t nbytes = take_size();
    if (!found || compressed != record.stored_nbytes || nbytes != record.nbytes) {
      throw_format(path_, "record {}: its descriptor and the central directory disagree", name);
    }
  }

  static constexpr std::uint64_t kWindow = 64 * kKiB;
  static constexpr std::uint64_t kSmallWindow = 512;

  const ByteSource& source_;
  std::string_view path_;
  std::string window_;  // bytes that were read last
  std::uint64_t window_at_ = 0;
};

}  // namespace

bool looks_like(const ByteSource& source) {
  std::uint32_t signature = 0;
  if (source.size() < kEndBytes) return false;
  source.read(0, std::as_writable_bytes(std::span(&signature, 1)));
  return signature == kLocalSignature;
}

std::vector<Record> parse(const ByteSource& source) {
  return Parser(source).run();
}

void read_record(const ByteSource& source, const Record& record,
                 const std::function<void(std::span<const std::byte>)>& take) {
  std::uint64_t at = record.offset;
  const auto read = [&](std::span<std::byte> bytes) {
    source.read(at, bytes);
    at += bytes.size();
  };
  if (record.deflated) {
    const char* const problem = inflate(record.stored_nbytes, record.nbytes, read, take);
    if (problem != nullptr) throw_format(source.path(), "record {}: {}", in_quotes(record.name), problem);
    return;
  }
  constexpr std::uint64_t kBlock = 1 * kMiB;
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(record.nbytes, kBlock)));
  for (std::uint64_t done = 0; done < record.nbytes; done += block.size()) {
    const auto next = std::span(block).first(static_cast<std::size_t>(std::min(record.nbytes - done, kBlock)));
    read(next);
    take(next);
  }
}

}  // namespace penstock::zip
