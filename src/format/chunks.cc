#include "format/chunks.h"

#include <simdjson.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/json.h"

namespace penstock {
namespace {

namespace dom = simdjson::dom;
using namespace std::string_view_literals;

constexpr std::string_view kFormatOfChunks = "penstock.dcp";
constexpr std::uint64_t kVersionOfChunks = 1;
constexpr std::uint64_t kMaxChunksSize = std::uint64_t{1} << 30;
// Of two chunks each, for each chunk of a tensor: a grid of 100 by 100 takes 100, one of 30 by 30 by 30 takes 900.
constexpr std::uint64_t kComparisonsPerChunk = 1000;

// The last entry of a dcp.json: the CRC-32 of all that comes before it.
constexpr std::string_view kOwnChecksum = ",\"crc32\":\"";
constexpr std::size_t kChecksumDigits = 8;
constexpr std::size_t kOwnChecksumSize = kOwnChecksum.size() + kChecksumDigits + 2;

std::string own_checksum(std::string_view text) {
  return fmt::format("{}{:08x}\"}}", kOwnChecksum, crc32(std::as_bytes(std::span(text))));
}

std::uint64_t count_elements(const Shape& shape) {
  std::uint64_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

// The same of a shape that nobody has looked at; nothing where it is no shape, or has more elements than files have.
std::optional<std::uint64_t> checked_count(const Shape& shape) {
  std::uint64_t count = 1;
  bool is_empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return {};
    is_empty = is_empty || size == 0;
    const auto product = checked_multiply(count, std::max<std::uint64_t>(static_cast<std::uint64_t>(size), 1));
    if (!product || *product > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return {};
    count = *product;
  }
  return is_empty ? 0 : count;
}

class ChunksParser {
 public:
  explicit ChunksParser(const ByteSource& source) : source_(source), path_(source.path()) {}

  ChunkedCheckpoint parse() {
    const std::string text = read_text();
    if (const auto place = find_invalid_utf8(text)) throw_format(path_, "byte {}: not valid UTF-8", *place);
    check_own_checksum(text);
    dom::parser parser;
    dom::element root;
    if (const auto error = parser.parse(text).get(root)) {
      throw_format(path_, "is no JSON: {}", simdjson::error_message(error));
    }
    const dom::object document = object_of(root, "the document");
    check_head(document);
    parse_files(document);
    for (const auto [name, entry] : object_of(member(document, "tensors"), "\"tensors\"")) parse_tensor(name, entry);
    for (const auto [name, file] : object_of(member(document, "objects"), "\"objects\"")) {
      if (!names_.emplace(name).second) throw_format(path_, "{} is there twice", in_quotes(name));
      file_number(file, name);
      checkpoint_.objects.emplace_back(name);
    }
    return std::move(checkpoint_);
  }

 private:
  std::string read_text() const {
    const std::uint64_t size = source_.size();
    if (size > kMaxChunksSize) throw_format(path_, "is larger than {} bytes", kMaxChunksSize);
    std::string text;
    text.reserve(size + simdjson::SIMDJSON_PADDING);
    text.resize(size);
    source_.read(0, std::as_writable_bytes(std::span(text)));
    return text;
  }

  // Who edits the text takes its last entry away.
  void check_own_checksum(std::string_view text) const {
    if (text.size() < kOwnChecksumSize || !text.ends_with("\"}")) return;
    const std::string_view covered = text.substr(0, text.size() - kOwnChecksumSize);
    const std::string_view entry = text.substr(covered.size());
    if (!entry.starts_with(kOwnChecksum)) return;
    const std::string found = own_checksum(covered);
    if (entry == found) return;
    throw_format(path_, "is damaged, or was edited: its CRC-32 is {}, it says {}",
                 found.substr(kOwnChecksum.size(), kChecksumDigits),
                 in_quotes(entry.substr(kOwnChecksum.size(), kChecksumDigits)));
  }

  dom::object object_of(dom::element element, std::string_view what) const {
    dom::object object;
    if (element.get(object) != simdjson::SUCCESS) throw_format(path_, "{} is no object", what);
    return object;
  }

  dom::array array_of(dom::element element, std::string_view what) const {
    dom::array array;
    if (element.get(array) != simdjson::SUCCESS) throw_format(path_, "{} is no list", what);
    return array;
  }

  dom::element member(dom::object object, std::string_view key, std::string_view of = {}) const {
    dom::element element;
    if (object.at_key(key).get(element) != simdjson::SUCCESS) {
      throw_format(path_, "{}has no \"{}\"", of.empty() ? std::string() : fmt::format("tensor {} ", in_quotes(of)),
                   key);
    }
    return element;
  }

  void check_head(dom::object document) const {
    std::string_view format;
    if (member(document, "format").get(format) != simdjson::SUCCESS || format != kFormatOfChunks) {
      throw_format(path_, "\"format\" is not \"{}\"", kFormatOfChunks);
    }
    std::uint64_t version = 0;
    if (member(document, "version").get(version) != simdjson::SUCCESS || version != kVersionOfChunks) {
      throw_format(path_, "\"version\" is not {}, which this penstock reads", kVersionOfChunks);
    }
  }

  void parse_files(dom::object document) {
    for (const dom::element element : array_of(member(document, "files"), "\"files\"")) {
      std::string_view name;
      if (element.get(name) != simdjson::SUCCESS || !is_file_in_directory(name)) {
        throw_format(path_, "\"files\": {} is not a plain file name", in_quotes(simdjson::minify(element)));
      }
      checkpoint_.files.emplace_back(name);
    }
  }

  static bool is_file_in_directory(std::string_view name) {
    return !name.empty() && name != "." && name != ".." && name.find_first_of("/\0"sv) == std::string_view::npos;
  }

  std::uint32_t file_number(dom::element element, std::string_view of) const {
    std::uint64_t number = 0;
    if (element.get(number) != simdjson::SUCCESS || number >= checkpoint_.files.size()) {
      throw_format(path_, "{}: {} is none of {} files", in_quotes(of), in_quotes(simdjson::minify(element)),
                   checkpoint_.files.size());
    }
    return static_cast<std::uint32_t>(number);
  }

  Shape shape_of(dom::element element, std::string_view of) const {
    Shape shape;
    for (const dom::element each : array_of(element, fmt::format("a shape of tensor {}", in_quotes(of)))) {
      std::int64_t size = 0;
      if (each.get(size) != simdjson::SUCCESS || size < 0) {
        throw_format(path_, "tensor {}: {} is no shape", in_quotes(of), in_quotes(simdjson::minify(element)));
      }
      shape.push_back(size);
    }
    return shape;
  }

  void parse_tensor(std::string_view name, dom::element element) {
    if (!names_.emplace(name).second) throw_format(path_, "{} is there twice", in_quotes(name));
    const dom::object entry = object_of(element, fmt::format("tensor {}", in_quotes(name)));
    ChunkedTensor tensor;
    tensor.name = name;
    std::string_view dtype;
    const auto known = member(entry, "dtype", name).get(dtype) == simdjson::SUCCESS ? parse_dtype(dtype) : std::nullopt;
    if (!known || dtype_torch_name(*known).empty()) {
      throw_format(path_, "tensor {}: unknown dtype {}", in_quotes(name),
                   in_quotes(simdjson::minify(member(entry, "dtype", name))));
    }
    tensor.dtype = *known;
    tensor.shape = shape_of(member(entry, "shape", name), name);
    for (const dom::element each : array_of(member(entry, "chunks", name), "a tensor's \"chunks\"")) {
      const dom::object chunk = object_of(each, fmt::format("a chunk of tensor {}", in_quotes(name)));
      tensor.chunks.push_back({file_number(member(chunk, "file", name), name),
                               {},
                               shape_of(member(chunk, "offsets", name), name),
                               shape_of(member(chunk, "shape", name), name)});
    }
    check_chunks(tensor, path_);
    checkpoint_.tensors.push_back(std::move(tensor));
  }

  const ByteSource& source_;
  const std::string_view path_;
  std::set<std::string, std::less<>> names_;
  ChunkedCheckpoint checkpoint_;
};

void check_chunk_fits(const ChunkedTensor& tensor, const TensorChunk& chunk, std::string_view path) {
  const std::size_t rank = tensor.shape.size();
  if (chunk.offsets.size() != rank || chunk.shape.size() != rank) {
    throw_format(path, "tensor {} has {} dimensions, and a chunk {} offsets, {} sizes", in_quotes(tensor.name), rank,
                 chunk.offsets.size(), chunk.shape.size());
  }
  bool fits = true;
  for (std::size_t i = 0; fits && i < rank; ++i) {
    fits = chunk.offsets[i] >= 0 && chunk.shape[i] >= 0 && chunk.offsets[i] <= tensor.shape[i] &&
           chunk.shape[i] <= tensor.shape[i] - chunk.offsets[i];
  }
  if (fits) return;
  throw_format(path, "tensor {}: the chunk {} at {} is not within {}", in_quotes(tensor.name), shape_text(chunk.shape),
               shape_text(chunk.offsets), shape_text(tensor.shape));
}

bool overlap(const TensorChunk& a, const TensorChunk& b) {
  for (std::size_t i = 0; i < a.shape.size(); ++i) {
    if (a.offsets[i] >= b.offsets[i] + b.shape[i] || b.offsets[i] >= a.offsets[i] + a.shape[i]) return false;
  }
  return true;
}

// The dimension in which most chunks begin at different places.
std::size_t most_divided(const ChunkedTensor& tensor) {
  std::size_t best = 0;
  std::size_t most = 0;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    std::set<std::int64_t> begins;
    for (const TensorChunk& chunk : tensor.chunks) begins.insert(chunk.offsets[i]);
    if (begins.size() > most) {
      most = begins.size();
      best = i;
    }
  }
  return best;
}

void check_apart(const ChunkedTensor& tensor, std::string_view path) {
  const std::size_t dimension = most_divided(tensor);
  std::vector<const TensorChunk*> order;
  for (const TensorChunk& chunk : tensor.chunks) {
    if (count_elements(chunk.shape) > 0) order.push_back(&chunk);
  }
  if (order.size() < 2) return;
  const auto fail = [&](const TensorChunk& chunk) {
    throw_format(path, "tensor {}: two chunks have the elements at {}", in_quotes(tensor.name),
                 shape_text(chunk.offsets));
  };
  if (tensor.shape.empty()) fail(*order.front());
  std::sort(order.begin(), order.end(),
            [&](const auto* a, const auto* b) { return a->offsets[dimension] < b->offsets[dimension]; });
  std::uint64_t comparisons = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t end = order[i]->offsets[dimension] + order[i]->shape[dimension];
    for (std::size_t j = i + 1; j < order.size() && order[j]->offsets[dimension] < end; ++j) {
      if (overlap(*order[i], *order[j])) fail(*order[j]);
      if (++comparisons > kComparisonsPerChunk * order.size()) {
        throw_unsupported(path, "tensor {}: {} chunks side by side are too many", in_quotes(tensor.name), order.size());
      }
    }
  }
}

void append_shape(std::string& json, const Shape& shape) {
  json += '[';
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) json += ',';
    append_json_number(json, static_cast<std::uint64_t>(shape[i]));
  }
  json += ']';
}

}  // namespace

void check_chunks(const ChunkedTensor& tensor, std::string_view path) {
  if (tensor.shape.size() > kMostChunkDimensions) {
    throw_format(path, "tensor {} has {} dimensions", in_quotes(tensor.name), tensor.shape.size());
  }
  const auto total = checked_count(tensor.shape);
  if (!total) throw_format(path, "tensor {}: {} is no shape", in_quotes(tensor.name), shape_text(tensor.shape));
  std::uint64_t covered = 0;
  for (const TensorChunk& chunk : tensor.chunks) {
    check_chunk_fits(tensor, chunk, path);
    const auto sum = checked_add(covered, count_elements(chunk.shape));
    covered = sum ? *sum : std::numeric_limits<std::uint64_t>::max();
  }
  if (covered > *total) {
    throw_format(path, "tensor {}: its chunks have {} elements of {}", in_quotes(tensor.name), covered, *total);
  }
  check_apart(tensor, path);
  if (covered < *total) {
    throw_format(path, "tensor {}: its chunks have {} elements of {}, the others are not there", in_quotes(tensor.name),
                 covered, *total);
  }
}

ChunkedCheckpoint parse_chunks(const ByteSource& source) {
  return ChunksParser(source).parse();
}

std::string encode_chunks(const ChunkedCheckpoint& checkpoint) {
  std::string json = fmt::format("{{\"format\":\"{}\",\"version\":{},\"files\":[", kFormatOfChunks, kVersionOfChunks);
  for (std::size_t i = 0; i < checkpoint.files.size(); ++i) {
    if (i > 0) json += ',';
    append_json_string(json, checkpoint.files[i]);
  }
  json += "],\"tensors\":{";
  bool first = true;
  for (const ChunkedTensor& tensor : checkpoint.tensors) {
    json += first ? "" : ",";
    first = false;
    append_json_string(json, tensor.name);
    json += fmt::format(":{{\"dtype\":\"{}\",\"shape\":", dtype_name(tensor.dtype));
    append_shape(json, tensor.shape);
    json += ",\"chunks\":[";
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
      const TensorChunk& chunk = tensor.chunks[i];
      json += fmt::format("{}{{\"file\":{},\"offsets\":", i > 0 ? "," : "", chunk.file);
      append_shape(json, chunk.offsets);
      json += ",\"shape\":";
      append_shape(json, chunk.shape);
      json += '}';
    }
    json += "]}";
  }
  json += "},\"objects\":{}";
  return json + own_checksum(json);
}

}  // namespace penstock
