#include "format/safetensors_header.h"

#include <array>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "base/json_cursor.h"
#include "format/safetensors.h"

namespace penstock::safetensors {
namespace {

constexpr std::string_view kDTypeKey = "dtype";
constexpr std::string_view kShapeKey = "shape";
constexpr std::string_view kOffsetsKey = "data_offsets";

// Guesses that save allocations.
constexpr std::size_t kUsualRank = 4;
constexpr std::size_t kUsualRecordBytes = 100;

class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::string_view path) : cursor_(text, kHeaderStart, path), path_(path) {}

  // `expected_tensors` only saves allocations.
  Layout parse(std::size_t expected_tensors);

 private:
  // Which fields of a record were seen.
  struct Seen {
    bool dtype = false;
    bool shape = false;
    bool offsets = false;
  };

  void parse_metadata();
  void parse_tensor(TensorInfo& tensor);
  void parse_field(TensorInfo& tensor, Seen& seen);
  void begin_field(const TensorInfo& tensor, std::string_view key, bool& seen);
  void parse_dtype_field(TensorInfo& tensor);
  void parse_shape(TensorInfo& tensor);
  void parse_offsets(TensorInfo& tensor);
  void check_size(const TensorInfo& tensor);
  [[noreturn]] void fail_kind(std::string_view expected, std::string_view of);

  JsonCursor cursor_;
  std::string_view path_;
  std::string key_scratch_;
  std::string value_scratch_;
  bool has_metadata_ = false;
  Layout layout_;
};

Layout HeaderParser::parse(std::size_t expected_tensors) {
  layout_.tensors.reserve(expected_tensors);
  cursor_.expect('{');
  for (bool first = true; cursor_.more('}', first);) {
    const std::uint64_t byte = cursor_.byte();
    const std::string_view name = cursor_.string(key_scratch_);
    cursor_.expect(':');
    if (name == kMetadataKey) {
      if (has_metadata_) throw_format(path_, "byte {}: \"{}\" appears twice in the header", byte, kMetadataKey);
      parse_metadata();
    } else {
      TensorInfo& tensor = layout_.tensors.emplace_back();
      tensor.name = name;
      parse_tensor(tensor);
    }
  }
  if (!cursor_.at_end()) {
    cursor_.fail(
        fmt::format("expected nothing but white space after the header's JSON, found {}", cursor_.describe_next()));
  }
  return std::move(layout_);
}

void HeaderParser::parse_metadata() {
  has_metadata_ = true;
  if (cursor_.take_null()) return;  // what MLX writes for none
  if (!cursor_.take('{')) fail_kind("an object", kMetadataKey);
  for (bool first = true; cursor_.more('}', first);) {
    const std::string_view key = cursor_.string(key_scratch_);
    cursor_.expect(':');
    if (cursor_.peek() != '"') fail_kind("a string", fmt::format("{} {}", kMetadataKey, in_quotes(key)));
    const std::string_view value = cursor_.string(value_scratch_);
    if (!layout_.metadata.emplace(key, value).second) {
      throw_format(path_, "{}: the key {} appears twice", kMetadataKey, in_quotes(key));
    }
  }
}

void HeaderParser::parse_tensor(TensorInfo& tensor) {
  if (!cursor_.take('{')) fail_kind("an object", fmt::format("tensor {}", in_quotes(tensor.name)));
  Seen seen;
  for (bool first = true; cursor_.more('}', first);) parse_field(tensor, seen);
  const std::string_view missing = !seen.dtype     ? kDTypeKey
                                   : !seen.shape   ? kShapeKey
                                   : !seen.offsets ? kOffsetsKey
                                                   : std::string_view();
  if (!missing.empty()) throw_format(path_, "tensor {}: \"{}\" is missing", in_quotes(tensor.name), missing);
  check_size(tensor);
}

void HeaderParser::parse_field(TensorInfo& tensor, Seen& seen) {
  const std::string_view key = cursor_.string(key_scratch_);
  if (key == kDTypeKey) {
    begin_field(tensor, key, seen.dtype);
    parse_dtype_field(tensor);
  } else if (key == kShapeKey) {
    begin_field(tensor, key, seen.shape);
    parse_shape(tensor);
  } else if (key == kOffsetsKey) {
    begin_field(tensor, key, seen.offsets);
    parse_offsets(tensor);
  } else {
    cursor_.fail(fmt::format("tensor {} has the unknown field {}", in_quotes(tensor.name), in_quotes(key)));
  }
}

void HeaderParser::begin_field(const TensorInfo& tensor, std::string_view key, bool& seen) {
  if (seen) cursor_.fail(fmt::format("tensor {} has \"{}\" twice", in_quotes(tensor.name), key));
  seen = true;
  cursor_.expect(':');
}

void HeaderParser::parse_dtype_field(TensorInfo& tensor) {
  if (cursor_.peek() != '"') fail_kind("a string", fmt::format("the dtype of tensor {}", in_quotes(tensor.name)));
  const std::uint64_t byte = cursor_.byte();
  const std::string_view name = cursor_.string(value_scratch_);
  const auto dtype = parse_dtype(name);
  if (!dtype || !has_dtype(*dtype))
    throw_format(path_, "byte {}: tensor {} has the unknown dtype {}", byte, in_quotes(tensor.name), in_quotes(name));
  tensor.dtype = *dtype;
}

void HeaderParser::parse_shape(TensorInfo& tensor) {
  if (!cursor_.take('[')) fail_kind("an array", fmt::format("the shape of tensor {}", in_quotes(tensor.name)));
  constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();
  tensor.shape.reserve(kUsualRank);
  for (bool first = true; cursor_.more(']', first);) {
    const std::uint64_t dimension = cursor_.integer();
    if (dimension > kLargest) {
      cursor_.fail(
          fmt::format("tensor {} has a dimension of {}, more than 2^63 - 1", in_quotes(tensor.name), dimension));
    }
    tensor.shape.push_back(static_cast<std::int64_t>(dimension));
  }
}

// For now TensorInfo::offset is the beginning and nbytes the distance to the end.
void HeaderParser::parse_offsets(TensorInfo& tensor) {
  if (!cursor_.take('[')) fail_kind("an array", fmt::format("data_offsets of tensor {}", in_quotes(tensor.name)));
  std::array<std::uint64_t, 2> offsets{};
  std::size_t count = 0;
  for (bool first = true; cursor_.more(']', first); ++count) {
    const std::uint64_t offset = cursor_.integer();
    if (count < offsets.size()) offsets[count] = offset;
  }
  if (count != offsets.size()) {
    cursor_.fail(fmt::format("tensor {} has {} data_offsets, expected 2", in_quotes(tensor.name), count));
  }
  const auto [begin, end] = offsets;
  if (begin > end) {
    cursor_.fail(fmt::format("tensor {} begins at {} and ends before that, at {}", in_quotes(tensor.name), begin, end));
  }
  tensor.offset = begin;
  tensor.nbytes = end - begin;
}

void HeaderParser::check_size(const TensorInfo& tensor) {
  const std::uint64_t expected = tensor_nbytes(tensor.dtype, tensor.shape, path_, tensor.name);
  if (tensor.nbytes == expected) return;
  throw_format(path_, "tensor {}: data_offsets [{}, {}] hold {} bytes, but {} {} takes {}", in_quotes(tensor.name),
               tensor.offset, tensor.offset + tensor.nbytes, tensor.nbytes, dtype_name(tensor.dtype),
               shape_text(tensor.shape), expected);
}

void HeaderParser::fail_kind(std::string_view expected, std::string_view of) {
  const std::string found = cursor_.describe_next();
  cursor_.fail(fmt::format("{}: expected {}, found {}", of, expected, found));
}

}  // namespace

Layout parse_header(std::string_view text, std::string_view path) {
  if (const auto place = find_invalid_utf8(text)) {
    throw_format(path, "byte {}: the header is not valid UTF-8", kHeaderStart + *place);
  }
  if (text.front() != '{') {
    throw_format(path, "byte {}: the header must start with '{{', found {}", kHeaderStart,
                 in_quotes(text.substr(0, 1)));
  }
  return HeaderParser(text, path).parse(text.size() / kUsualRecordBytes);
}

}  // namespace penstock::safetensors
