#include "format/shards.h"

#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/json.h"

namespace penstock {
namespace {

namespace dom = simdjson::dom;
using namespace std::string_view_literals;

constexpr std::string_view kWeightMapKey = "weight_map";
constexpr std::string_view kMetadataKey = "metadata";
constexpr std::string_view kTotalSizeKey = "total_size";
constexpr std::uint64_t kMaxIndexSize = 100'000'000;

class IndexParser {
 public:
  explicit IndexParser(const ByteSource& source) : source_(source), path_(source.path()) {}

  ShardIndex parse();

 private:
  std::string read_text() const;
  void parse_metadata(dom::element element);
  void parse_weight_map(dom::element element);
  std::uint32_t file_number(std::string_view tensor, std::string_view file);

  const ByteSource& source_;
  std::string_view path_;
  std::map<std::string, std::uint32_t, std::less<>> file_numbers_;
  ShardIndex index_;
};

std::string_view kind_text(dom::element element) noexcept {
  switch (element.type()) {
    case dom::element_type::ARRAY:
      return "an array";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::STRING:
      return "a string";
    case dom::element_type::BOOL:
      return "a boolean";
    case dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

std::string IndexParser::read_text() const {
  const std::uint64_t size = source_.size();
  if (size == 0) throw_format(path_, "the shard index is empty");
  if (size > kMaxIndexSize)
    throw_format(path_, "a shard index of {} bytes, more than the limit of {}", size, kMaxIndexSize);
  std::string text;
  text.reserve(size + simdjson::SIMDJSON_PADDING);
  text.resize(size);
  source_.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

ShardIndex IndexParser::parse() {
  const std::string text = read_text();
  if (const auto place = find_invalid_utf8(text))
    throw_format(path_, "byte {}: the shard index is not valid UTF-8", *place);
  dom::parser parser;
  dom::element root;
  if (const auto error = parser.parse(text).get(root)) {
    throw_format(path_, "the shard index is not valid JSON: {}", simdjson::error_message(error));
  }
  dom::object object;
  if (root.get(object) != simdjson::SUCCESS) {
    throw_format(path_, "the shard index is {}, expected an object", kind_text(root));
  }
  bool has_weight_map = false;
  bool has_metadata = false;
  for (const auto [key, value] : object) {
    bool* seen = key == kWeightMapKey ? &has_weight_map : key == kMetadataKey ? &has_metadata : nullptr;
    if (seen == nullptr) continue;
    if (*seen) throw_format(path_, "\"{}\" appears twice in the shard index", key);
    *seen = true;
    if (seen == &has_weight_map) {
      parse_weight_map(value);
    } else {
      parse_metadata(value);
    }
  }
  if (!has_weight_map) throw_format(path_, "the shard index has no \"{}\"", kWeightMapKey);
  return std::move(index_);
}

void IndexParser::parse_metadata(dom::element element) {
  dom::object object;
  if (element.is_null()) return;
  if (element.get(object) != simdjson::SUCCESS) {
    throw_format(path_, "\"{}\" is {}, expected an object", kMetadataKey, kind_text(element));
  }
  for (const auto [key, value] : object) {
    std::string_view text;
    const bool is_string = value.get(text) == simdjson::SUCCESS;
    const auto inserted = index_.metadata.emplace(key, is_string ? std::string(text) : simdjson::minify(value));
    if (!inserted.second) throw_format(path_, "\"{}\": the key {} appears twice", kMetadataKey, in_quotes(key));
  }
}

void IndexParser::parse_weight_map(dom::element element) {
  dom::object object;
  if (element.get(object) != simdjson::SUCCESS) {
    throw_format(path_, "\"{}\" is {}, expected an object", kWeightMapKey, kind_text(element));
  }
  for (const auto [tensor, value] : object) {
    std::string_view file;
    if (value.get(file) != simdjson::SUCCESS) {
      throw_format(path_, "tensor {}: its file is {}, expected a name", in_quotes(tensor), kind_text(value));
    }
    const std::uint32_t number = file_number(tensor, file);
    const std::size_t before = index_.weight_map.size();
    index_.weight_map.emplace_hint(index_.weight_map.end(), tensor, number);
    if (index_.weight_map.size() == before) {
      throw_format(path_, "tensor {} is listed twice in the shard index", in_quotes(tensor));
    }
  }
}

// Only a plain name can be meant: anything else would let an index reach files outside its directory.
bool is_plain_name(std::string_view file) noexcept {
  return !file.empty() && file != "." && file != ".." && file.find_first_of("/\\\0"sv) == std::string_view::npos;
}

std::uint32_t IndexParser::file_number(std::string_view tensor, std::string_view file) {
  const auto found = file_numbers_.find(file);
  if (found != file_numbers_.end()) return found->second;
  if (!is_plain_name(file)) {
    throw_format(path_, "tensor {}: the shard name {} is not a plain file name", in_quotes(tensor), in_quotes(file));
  }
  const auto number = static_cast<std::uint32_t>(index_.files.size());
  index_.files.emplace_back(file);
  file_numbers_.emplace(file, number);
  return number;
}

// "model.safetensors" -> "model" and ".safetensors".
std::pair<std::string_view, std::string_view> split_suffix(std::string_view file_name) noexcept {
  const std::size_t dot = file_name.rfind('.');
  const std::size_t stem = dot == std::string_view::npos || dot == 0 ? file_name.size() : dot;
  return {file_name.substr(0, stem), file_name.substr(stem)};
}

// Takes `before` and the number behind it from the front of `text`.
bool take_number(std::string_view& text, std::string_view before, std::uint64_t& number) noexcept {
  if (!text.starts_with(before)) return false;
  text.remove_prefix(before.size());
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

void append_entry(std::string& json, bool& first, std::string_view key) {
  json += first ? "\n    " : ",\n    ";
  first = false;
  append_json_string(json, key);
  json += ": ";
}

}  // namespace

ShardIndex parse_shard_index(const ByteSource& source) {
  return IndexParser(source).parse();
}

std::string encode_shard_index(const ShardIndex& index, std::uint64_t total_size) {
  Metadata metadata;  // all values as JSON text
  for (const auto& [key, value] : index.metadata) append_json_string(metadata[key], value);
  for (const auto& [key, value] : index.json_metadata) metadata.insert_or_assign(key, value);
  std::string size;
  append_json_number(size, total_size);
  metadata.insert_or_assign(std::string(kTotalSizeKey), size);
  std::string json = "{\n  \"metadata\": {";
  bool first = true;
  for (const auto& [key, value] : metadata) {
    append_entry(json, first, key);
    json += value;
  }
  json += "\n  },\n  \"weight_map\": {";
  first = true;
  for (const auto& [tensor, number] : index.weight_map) {
    append_entry(json, first, tensor);
    append_json_string(json, index.files.at(number));
  }
  json += first ? "}\n}\n" : "\n  }\n}\n";
  return json;
}

std::vector<std::uint32_t> assign_shards(std::span<const TensorSpec> specs, std::uint64_t max_shard_size) {
  std::vector<std::uint32_t> shards;
  shards.reserve(specs.size());
  std::uint32_t shard = 0;
  std::uint64_t used = 0;
  for (const TensorSpec& spec : specs) {
    const auto sum = checked_add(used, spec.nbytes);
    // A shard of nothing but empty tensors is no file in some formats.
    if (used > 0 && (!sum || *sum > max_shard_size)) {
      ++shard;
      used = 0;
    }
    used += spec.nbytes;
    shards.push_back(shard);
  }
  return shards;
}

std::string shard_file_name(std::string_view file_name, std::uint32_t shard, std::uint32_t shard_count,
                            std::uint64_t generation) {
  const auto [stem, suffix] = split_suffix(file_name);
  const std::string marker = generation > 1 ? fmt::format("-g{}", generation) : std::string();
  return fmt::format("{}{}-{:05}-of-{:05}{}", stem, marker, shard + 1, shard_count, suffix);
}

std::optional<ShardSetName> parse_shard_name(std::string_view file_name, std::string_view shard) noexcept {
  const auto [stem, suffix] = split_suffix(file_name);
  if (shard.size() < stem.size() + suffix.size() || !shard.starts_with(stem) || !shard.ends_with(suffix)) return {};
  std::string_view rest = shard.substr(stem.size(), shard.size() - stem.size() - suffix.size());
  ShardSetName name{1, 0};
  if (rest.starts_with("-g") && (!take_number(rest, "-g", name.generation) || name.generation < 2)) return {};
  std::uint64_t number = 0;
  const bool is_shard = take_number(rest, "-", number) && take_number(rest, "-of-", name.shard_count) && rest.empty();
  return is_shard ? std::optional(name) : std::nullopt;
}

std::uint64_t shard_generation(std::string_view file_name, std::string_view shard) noexcept {
  return parse_shard_name(file_name, shard).value_or(ShardSetName{}).generation;
}

bool belongs_to_set(std::string_view file_name, std::string_view name) {
  return name == file_name || name == index_file_name(file_name) || shard_generation(file_name, name) > 0;
}

std::string index_file_name(std::string_view file_name) {
  return fmt::format("{}{}", file_name, kIndexSuffix);
}

}  // namespace penstock
