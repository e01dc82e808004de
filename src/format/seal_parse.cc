// The parser of seals. A seal is bytes from anywhere: its own checksum is looked at first, then every field.
#include <algorithm>
#include <limits>
#include <optional>

#include "base/checksum.h"
#include "base/error.h"
#include "base/json.h"
#include "base/json_cursor.h"
#include "format/checksums.h"
#include "format/seal.h"

namespace penstock {
namespace {

// What encode_seal() ends with, apart from the eight digits.
constexpr std::string_view kBeforeOwnChecksum = "  \"crc32c\": \"";
constexpr std::string_view kAfterOwnChecksum = "\"\n}\n";
constexpr std::size_t kSealDigits = 8;
constexpr std::size_t kOwnChecksumBytes = kBeforeOwnChecksum.size() + kSealDigits + kAfterOwnChecksum.size();
constexpr std::size_t kSha256Digits = 64;

bool is_lower_hex(std::string_view text) noexcept {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

class SealParser {
 public:
  SealParser(std::string_view text, std::string_view path) : path_(path), text_(text), cursor_(text, 0, path) {}

  Seal parse() {
    check_own_checksum();
    cursor_.expect('{');
    parse_version();
    for (bool first = false; cursor_.more('}', first);) parse_field();
    if (!cursor_.at_end()) cursor_.fail("expected nothing after the seal");
    check();
    return std::move(seal_);
  }

 private:
  // A seal with a flipped bit is told from a file with one.
  void check_own_checksum() const {
    const auto fail = [this] {
      throw_format(path_, "is no seal: it does not end with its own checksum (was it cut off, or edited?)");
    };
    if (text_.size() < kOwnChecksumBytes || !text_.ends_with(kAfterOwnChecksum)) fail();
    const std::string_view last = text_.substr(text_.size() - kOwnChecksumBytes);
    const auto said = parse_checksums(last.substr(kBeforeOwnChecksum.size(), kSealDigits), 1);
    if (!last.starts_with(kBeforeOwnChecksum) || !said) fail();
    const std::uint32_t found = crc32c(std::as_bytes(std::span(text_)).first(text_.size() - kOwnChecksumBytes));
    if (found == said->front()) return;
    throw_format(path_, "the seal itself is damaged, or was edited: its CRC-32C is {:08x}, it says {:08x}", found,
                 said->front());
  }

  // It comes first, so that a later version is told from a damaged seal.
  void parse_version() {
    const std::string_view key = cursor_.string(scratch_);
    if (key != "penstock.seal") cursor_.fail(fmt::format("expected \"penstock.seal\", found {}", in_quotes(key)));
    cursor_.expect(':');
    const std::uint64_t version = cursor_.integer();
    if (version != 1) throw_unsupported(path_, "a seal of version {}: this penstock reads version 1", version);
  }

  void parse_field() {
    const std::string key(cursor_.string(scratch_));
    cursor_.expect(':');
    if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) {
      cursor_.fail(fmt::format("{} appears twice", in_quotes(key)));
    }
    seen_.push_back(key);
    if (key == "size") {
      seal_.size = cursor_.integer();
    } else if (key == "sha256") {
      seal_.sha256 = cursor_.string(scratch_);
      if (seal_.sha256.size() != kSha256Digits || !is_lower_hex(seal_.sha256)) {
        cursor_.fail("\"sha256\" is not 64 lower-case hex digits");
      }
    } else if (key == "block_size") {
      seal_.block_size = cursor_.integer();
    } else if (key == "blocks") {
      seal_.blocks = parse_blocks();
    } else if (key == "tensors") {
      parse_tensors();
    } else if (key == "crc32c") {
      cursor_.string(scratch_);  // was looked at first
    } else {
      cursor_.fail(fmt::format("the unknown field {}", in_quotes(key)));
    }
  }

  std::vector<std::uint32_t> parse_blocks() {
    const std::string_view digits = cursor_.string(scratch_);
    auto blocks = parse_checksums(digits, digits.size() / kSealDigits);
    if (!blocks) cursor_.fail("\"blocks\" is not 8 lower-case hex digits for each block");
    return std::move(*blocks);
  }

  void parse_tensors() {
    cursor_.expect('[');
    for (bool first = true; cursor_.more(']', first);) {
      SealedTensor tensor = parse_tensor();
      if (!seal_.tensors.empty() && seal_.tensors.back().name >= tensor.name) {
        cursor_.fail(fmt::format("tensor {} comes after {}: they are sorted by name, and each is there once",
                                 in_quotes(tensor.name), in_quotes(seal_.tensors.back().name)));
      }
      seal_.tensors.push_back(std::move(tensor));
    }
  }

  SealedTensor parse_tensor() {
    SealedTensor tensor;
    cursor_.expect('{');
    tensor.name = expect_key("name", false).string(scratch_);
    const std::string_view dtype = expect_key("dtype").string(scratch_);
    const auto known = parse_dtype(dtype);
    if (!known)
      cursor_.fail(fmt::format("tensor {} has the unknown dtype {}", in_quotes(tensor.name), in_quotes(dtype)));
    tensor.dtype = *known;
    expect_key("shape");
    tensor.shape = parse_numbers();
    cursor_.expect(',');
    std::string_view key = cursor_.string(scratch_);
    if (key == "byte_strides") {
      cursor_.expect(':');
      tensor.byte_strides = parse_numbers();
      if (tensor.byte_strides.empty() || tensor.byte_strides.size() != tensor.shape.size()) {
        cursor_.fail(fmt::format("tensor {} has {} dimensions and {} strides", in_quotes(tensor.name),
                                 tensor.shape.size(), tensor.byte_strides.size()));
      }
      cursor_.expect(',');
      key = cursor_.string(scratch_);
    }
    if (key != "offset") fail_key("offset", key);
    cursor_.expect(':');
    tensor.offset = cursor_.integer();
    tensor.nbytes = expect_key("nbytes").integer();
    const auto checksum = parse_checksums(expect_key("crc32c").string(scratch_), 1);
    if (!checksum)
      cursor_.fail(fmt::format("the crc32c of tensor {} is not 8 lower-case hex digits", in_quotes(tensor.name)));
    tensor.crc32c = checksum->front();
    cursor_.expect('}');
    return tensor;
  }

  // Passes a key that has to come next, and its colon.
  JsonCursor& expect_key(std::string_view expected, bool comma = true) {
    if (comma) cursor_.expect(',');
    const std::string_view key = cursor_.string(scratch_);
    if (key != expected) fail_key(expected, key);
    cursor_.expect(':');
    return cursor_;
  }

  [[noreturn]] void fail_key(std::string_view expected, std::string_view found) const {
    cursor_.fail(
        fmt::format("a tensor's fields are name, dtype, shape, byte_strides (of a view), offset, nbytes, "
                    "crc32c: expected \"{}\", found {}",
                    expected, in_quotes(found)));
  }

  std::vector<std::int64_t> parse_numbers() {
    std::vector<std::int64_t> numbers;
    cursor_.expect('[');
    for (bool first = true; cursor_.more(']', first);) {
      const std::uint64_t number = cursor_.integer();
      if (number > std::numeric_limits<std::int64_t>::max())
        cursor_.fail(fmt::format("{} is more than 2^63 - 1", number));
      numbers.push_back(static_cast<std::int64_t>(number));
    }
    return numbers;
  }

  void check() const {
    for (const std::string_view key : {"size", "block_size", "blocks", "tensors"}) {
      if (std::find(seen_.begin(), seen_.end(), key) == seen_.end()) throw_format(path_, "\"{}\" is missing", key);
    }
    if (!is_seal_block_size(seal_.block_size)) {
      throw_format(path_, "blocks of {} bytes: expected a power of two from {} to {}", seal_.block_size,
                   kSmallestSealBlock, kLargestSealBlock);
    }
    const std::uint64_t expected = count_blocks(seal_.size, seal_.block_size);
    if (seal_.blocks.size() != expected) {
      throw_format(path_, "has the checksums of {} blocks, but a file of {} bytes has {}", seal_.blocks.size(),
                   seal_.size, expected);
    }
    for (const SealedTensor& tensor : seal_.tensors) {
      const auto end = checked_add(tensor.offset, tensor.nbytes);
      if (end && *end <= seal_.size) continue;
      throw_format(path_, "tensor {}: {} bytes at {} are not within a file of {}", in_quotes(tensor.name),
                   tensor.nbytes, tensor.offset, seal_.size);
    }
  }

  const std::string_view path_;
  const std::string_view text_;
  JsonCursor cursor_;
  std::string scratch_;
  std::vector<std::string> seen_;
  Seal seal_;
};

}  // namespace

Seal parse_seal(const ByteSource& source) {
  const std::string& path = source.path();
  if (source.size() > kMaxSealSize) {
    throw_format(path, "a seal of {} bytes, more than the limit of {}", source.size(), kMaxSealSize);
  }
  std::string text(source.size(), '\0');
  source.read(0, std::as_writable_bytes(std::span(text)));
  if (const auto place = find_invalid_utf8(text)) throw_format(path, "byte {}: the seal is not valid UTF-8", *place);
  return SealParser(text, path).parse();
}

}  // namespace penstock
