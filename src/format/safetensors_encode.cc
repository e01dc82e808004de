// Writing: the order of the tensors, the header's JSON and its padding.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/bytes.h"
#include "base/error.h"
#include "base/json.h"
#include "format/safetensors.h"
#include "format/safetensors_header.h"

namespace penstock::safetensors {
namespace {

void check_text(std::string_view what, std::string_view text) {
  if (const auto place = find_invalid_utf8(text)) {
    throw_argument("{} {} is not valid UTF-8 (at byte {} of it)", what, in_quotes(text), *place);
  }
}

void check_specs(std::span<const TensorSpec> specs) {
  for (const TensorSpec& spec : specs) {
    check_text("the tensor name", spec.name);
    if (spec.name == kMetadataKey) throw_argument("a tensor can't have the reserved name \"{}\"", kMetadataKey);
    if (!has_dtype(spec.dtype)) {
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("tensor {}: safetensors has no {}", in_quotes(spec.name), dtype_name(spec.dtype)));
    }
    const NbytesResult result = try_tensor_nbytes(spec.dtype, spec.shape);
    if (result.problem != nullptr) {
      throw_argument("tensor {}: {} {} {}", in_quotes(spec.name), dtype_name(spec.dtype), shape_text(spec.shape),
                     result.problem);
    }
    if (result.nbytes != spec.nbytes) {
      throw_argument("tensor {}: {} bytes were given, but {} {} takes {}", in_quotes(spec.name), spec.nbytes,
                     dtype_name(spec.dtype), shape_text(spec.shape), result.nbytes);
    }
  }
}

// Asked in the order of the file, in which most neighbours already differ in the right direction.
void check_names_differ(std::span<const TensorSpec> specs, std::span<const std::uint32_t> order) {
  std::vector<std::string_view> names(order.size());
  std::transform(order.begin(), order.end(), names.begin(),
                 [&](std::uint32_t i) { return std::string_view(specs[i].name); });
  if (const auto duplicate = find_duplicate(names)) {
    throw_argument("two tensors have the name {}", in_quotes(names[duplicate->first]));
  }
}

// The reference's order: by dtype, last one of the enumeration first (which puts wider elements before narrower ones),
// then by name.
std::vector<std::uint32_t> order_of(std::span<const TensorSpec> specs) {
  std::vector<std::uint32_t> order(specs.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto comes_before = [&](std::uint32_t a, std::uint32_t b) {
    if (specs[a].dtype != specs[b].dtype) return specs[a].dtype > specs[b].dtype;
    return specs[a].name < specs[b].name;
  };
  if (!std::is_sorted(order.begin(), order.end(), comes_before)) std::sort(order.begin(), order.end(), comes_before);
  return order;
}

// Gives each spec its offset from the start of the data; returns the size of the data.
std::uint64_t place(std::span<const TensorSpec> specs, std::span<const std::uint32_t> order,
                    std::span<std::uint64_t> offsets) {
  std::uint64_t end = 0;
  for (const std::uint32_t i : order) {
    offsets[i] = end;
    const auto next = checked_add(end, specs[i].nbytes);
    if (!next) throw_argument("tensor {}: the file would be larger than 2^64 bytes", in_quotes(specs[i].name));
    end = *next;
  }
  return end;
}

void append_metadata(std::string& json, const Metadata& metadata) {
  append_json_string(json, kMetadataKey);
  json += ":{";
  bool first = true;
  for (const auto& [key, value] : metadata) {
    check_text("the metadata key", key);
    check_text("the metadata value", value);
    if (!first) json += ',';
    first = false;
    append_json_string(json, key);
    json += ':';
    append_json_string(json, value);
  }
  json += '}';
}

void append_tensor(std::string& json, const TensorSpec& spec, std::uint64_t begin) {
  append_json_string(json, spec.name);
  json += ":{\"dtype\":\"";
  json += dtype_name(spec.dtype);
  json += "\",\"shape\":[";
  bool first = true;
  for (const std::int64_t dimension : spec.shape) {
    if (!first) json += ',';
    first = false;
    append_json_number(json, static_cast<std::uint64_t>(dimension));
  }
  json += "],\"data_offsets\":[";
  append_json_number(json, begin);
  json += ',';
  append_json_number(json, begin + spec.nbytes);
  json += "]}";
}

std::string make_json(std::span<const TensorSpec> specs, const Metadata& metadata, std::span<const std::uint32_t> order,
                      std::span<const std::uint64_t> offsets, bool empty_metadata) {
  std::string json;
  json.reserve(specs.size() * 128);
  json += '{';
  if (empty_metadata || !metadata.empty()) append_metadata(json, metadata);
  for (const std::uint32_t i : order) {
    if (json.size() > 1) json += ',';
    append_tensor(json, specs[i], offsets[i]);
  }
  json += '}';
  return json;
}

// The data starts at a multiple of 8, as the reference has it.
std::uint64_t padded_length(std::uint64_t length) {
  const std::uint64_t padded = align_up(kHeaderStart + length, 8) - kHeaderStart;
  if (padded > kMaxHeaderLength) {
    throw_argument("the header would take {} bytes, more than the {} that safetensors allows", padded,
                   kMaxHeaderLength);
  }
  return padded;
}

std::vector<std::byte> make_prefix(std::string_view json, std::uint64_t header_length) {
  std::vector<std::byte> prefix(kHeaderStart + header_length, std::byte{' '});
  for (std::size_t i = 0; i < kHeaderStart; ++i) prefix[i] = static_cast<std::byte>(header_length >> (8 * i));
  std::memcpy(prefix.data() + kHeaderStart, json.data(), json.size());
  return prefix;
}

}  // namespace

FilePlan encode(std::span<const TensorSpec> specs, const Metadata& metadata, bool empty_metadata) {
  check_specs(specs);
  FilePlan plan;
  plan.order = order_of(specs);
  check_names_differ(specs, plan.order);
  plan.offsets.resize(specs.size());
  const std::uint64_t data_size = place(specs, plan.order, plan.offsets);
  const std::string json = make_json(specs, metadata, plan.order, plan.offsets, empty_metadata);
  plan.prefix = make_prefix(json, padded_length(json.size()));
  for (std::uint64_t& offset : plan.offsets) offset += plan.prefix.size();
  const auto file_size = checked_add(plan.prefix.size(), data_size);
  if (!file_size) throw_argument("the file would be larger than 2^64 bytes");
  plan.file_size = *file_size;
  return plan;
}

}  // namespace penstock::safetensors
