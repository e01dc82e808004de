// Writing: the order of the tensors, the blocks, and the footer's JSON.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/bytes.h"
#include "base/error.h"
#include "base/json.h"
#include "format/flashpack.h"
#include "format/flashpack_footer.h"
#include "format/flashpack_tail.h"

namespace penstock::flashpack {
namespace {

constexpr std::uint64_t kMaxAlignBytes = 1 * kGiB;

std::uint64_t width_of(DType dtype) {
  return dtype_bits(dtype) / 8;
}

void check_text(std::string_view what, std::string_view text) {
  if (const auto place = find_invalid_utf8(text)) {
    throw_argument("{} {} is not valid UTF-8 (at byte {} of it)", what, in_quotes(text), *place);
  }
}

void check_specs(std::span<const TensorSpec> specs) {
  std::vector<std::string_view> names;
  for (const TensorSpec& spec : specs) {
    check_text("the tensor name", spec.name);
    if (dtype_bits(spec.dtype) < 8) {
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("tensor {}: FlashPack has no {}", in_quotes(spec.name), dtype_name(spec.dtype)));
    }
    const NbytesResult result = try_tensor_nbytes(spec.dtype, spec.shape);
    if (result.problem != nullptr || result.nbytes != spec.nbytes) {
      throw_argument("tensor {}: {} {} does not take {} bytes", in_quotes(spec.name), dtype_name(spec.dtype),
                     shape_text(spec.shape), spec.nbytes);
    }
    names.push_back(spec.name);
  }
  if (const auto duplicate = find_duplicate(names)) {
    throw_argument("two tensors have the name {}", in_quotes(names[duplicate->first]));
  }
}

// One block while it is laid out.
struct NewBlock {
  DType dtype;
  std::vector<std::uint32_t> members;  // indices into the specs
  std::uint64_t offset = 0;            // bytes
  std::uint64_t elements = 0;
};

class Encoder {
 public:
  Encoder(std::span<const TensorSpec> specs, const Metadata& metadata, const FlashPackOptions& options)
      : specs_(specs), metadata_(metadata), options_(options), element_offsets_(specs.size()) {}

  FilePlan encode() {
    group();
    for (NewBlock& block : blocks_) place(block);
    if (payload_ == 0) throw_argument("there is nothing to store: a FlashPack file needs at least one element");
    plan_.suffix = make_suffix();
    const auto size = checked_add(payload_, plan_.suffix.size());
    if (!size) fail_too_large();
    plan_.file_size = *size;
    plan_.order.resize(specs_.size());
    std::iota(plan_.order.begin(), plan_.order.end(), 0U);
    std::sort(plan_.order.begin(), plan_.order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::tie(plan_.offsets[a], specs_[a].nbytes, specs_[a].name) <
             std::tie(plan_.offsets[b], specs_[b].nbytes, specs_[b].name);
    });
    return std::move(plan_);
  }

 private:
  // Blocks in the order in which their dtypes are first met.
  void group() {
    std::vector<std::uint32_t> order(specs_.size());
    std::iota(order.begin(), order.end(), 0U);
    if (!options_.keep_order) {
      const auto count = [&](std::uint32_t i) { return specs_[i].nbytes / width_of(specs_[i].dtype); };
      std::stable_sort(order.begin(), order.end(),
                       [&](std::uint32_t a, std::uint32_t b) { return count(a) > count(b); });
    }
    for (const std::uint32_t i : order) {
      auto block = std::find_if(blocks_.begin(), blocks_.end(),
                                [&](const NewBlock& known) { return known.dtype == specs_[i].dtype; });
      if (block == blocks_.end()) block = blocks_.insert(block, {specs_[i].dtype, {}});
      block->members.push_back(i);
    }
  }

  void place(NewBlock& block) {
    const std::uint64_t width = width_of(block.dtype);
    std::uint64_t alignment = options_.align_bytes == 0 ? width : std::lcm(options_.align_bytes, width);
    if (options_.align_large) alignment = std::lcm(alignment, kLargeAlignment);
    block.offset = round_up(payload_, alignment);
    // In elements: the fewest that fill a multiple of align_bytes.
    const std::uint64_t step =
        options_.align_bytes == 0 ? 1 : options_.align_bytes / std::gcd(options_.align_bytes, width);
    const std::uint64_t large_step = std::lcm(step, kLargeAlignment / width);
    plan_.offsets.resize(specs_.size());
    for (const std::uint32_t i : block.members) {
      const bool large = options_.align_large && specs_[i].nbytes >= kLargeTensor;
      element_offsets_[i] = round_up(block.elements, large ? large_step : step);
      block.elements = add(element_offsets_[i], specs_[i].nbytes / width);
      const auto bytes = checked_multiply(element_offsets_[i], width);
      if (!bytes) fail_too_large();
      plan_.offsets[i] = add(block.offset, *bytes);
    }
    const auto nbytes = checked_multiply(block.elements, width);
    if (!nbytes) fail_too_large();
    payload_ = add(block.offset, *nbytes);
  }

  [[noreturn]] static void fail_too_large() { throw_argument("the file would be larger than 2^64 bytes"); }

  static std::uint64_t add(std::uint64_t a, std::uint64_t b) {
    const auto sum = checked_add(a, b);
    if (!sum) fail_too_large();
    return *sum;
  }

  static std::uint64_t round_up(std::uint64_t value, std::uint64_t step) {
    return add(value, (step - value % step) % step);
  }

  void append_field(std::string& json, std::string_view name, std::uint64_t value) const {
    json += ",\"";
    json += name;
    json += "\":";
    append_json_number(json, value);
  }

  std::string make_json() const {
    const bool single = blocks_.size() == 1;
    std::string json;
    json.reserve(specs_.size() * 128);
    json += fmt::format("{{\"format\":\"{}\"", single ? kFormatV3 : kFormatV4);
    if (single) json += fmt::format(",\"target_dtype\":\"{}\"", dtype_torch_name(blocks_.front().dtype));
    append_field(json, "align_bytes", options_.align_bytes);
    if (!single) append_field(json, "total_payload_bytes", payload_);
    std::uint64_t elements = 0;
    for (const NewBlock& block : blocks_) elements += block.elements;
    append_field(json, "total_elems", elements);
    if (!single) append_blocks(json);
    append_index(json, single);
    if (!metadata_.empty()) append_metadata(json);
    json += '}';
    return json;
  }

  void append_blocks(std::string& json) const {
    json += ",\"macroblocks\":[";
    for (const NewBlock& block : blocks_) {
      if (json.back() != '[') json += ',';
      json += fmt::format("{{\"dtype\":\"{}\"", dtype_torch_name(block.dtype));
      append_field(json, "offset_bytes", block.offset);
      append_field(json, "length_bytes", block.elements * width_of(block.dtype));
      append_field(json, "length_elems", block.elements);
      json += '}';
    }
    json += ']';
  }

  void append_index(std::string& json, bool single) const {
    json += ",\"index\":[";
    for (std::size_t number = 0; number < blocks_.size(); ++number) {
      for (const std::uint32_t i : blocks_[number].members) {
        if (json.back() != '[') json += ',';
        append_tensor(json, i);
        if (!single) append_field(json, "macroblock", number);
        json += '}';
      }
    }
    json += ']';
  }

  void append_tensor(std::string& json, std::uint32_t i) const {
    json += "{\"name\":";
    append_json_string(json, specs_[i].name);
    json += ",\"shape\":[";
    for (const std::int64_t dimension : specs_[i].shape) {
      if (json.back() != '[') json += ',';
      append_json_number(json, static_cast<std::uint64_t>(dimension));
    }
    json += ']';
    append_field(json, "offset", element_offsets_[i]);
    append_field(json, "length", specs_[i].nbytes / width_of(specs_[i].dtype));
  }

  void append_metadata(std::string& json) const {
    json += ",\"metadata\":{";
    for (const auto& [key, value] : metadata_) {
      check_text("the metadata key", key);
      check_text("the metadata value", value);
      if (json.back() != '{') json += ',';
      append_json_string(json, key);
      json += ':';
      append_json_string(json, value);
    }
    json += '}';
  }

  std::vector<std::byte> make_suffix() const {
    const std::string json = make_json();
    std::vector<std::byte> suffix(json.size() + kTailBytes);
    std::memcpy(suffix.data(), json.data(), json.size());
    for (std::size_t i = 0; i < kLengthBytes; ++i)
      suffix[json.size() + i] = static_cast<std::byte>(json.size() >> (8 * i));
    std::memcpy(suffix.data() + json.size() + kLengthBytes, kMagic.data(), kMagic.size());
    return suffix;
  }

  std::span<const TensorSpec> specs_;
  const Metadata& metadata_;
  const FlashPackOptions& options_;
  std::vector<std::uint64_t> element_offsets_;  // of each spec, within its block
  std::vector<NewBlock> blocks_;
  std::uint64_t payload_ = 0;  // bytes
  FilePlan plan_;
};

}  // namespace

FilePlan encode(std::span<const TensorSpec> specs, const Metadata& metadata, const FlashPackOptions& options) {
  if (options.align_bytes > kMaxAlignBytes) {
    throw_argument("align_bytes is {}, more than the limit of {}", options.align_bytes, kMaxAlignBytes);
  }
  check_specs(specs);
  return Encoder(specs, metadata, options).encode();
}

}  // namespace penstock::flashpack
