#include "format/seal.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checksum.h"
#include "base/json.h"
#include "format/checksums.h"

namespace penstock {
namespace {

constexpr std::string_view kSealSuffix = ".seal.json";

void append_list(std::string& out, std::span<const std::int64_t> numbers) {
  out += '[';
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(numbers[i]);
  }
  out += ']';
}

void append_tensor(std::string& out, const SealedTensor& tensor) {
  out += "    {\"name\": ";
  append_json_string(out, tensor.name);
  out += fmt::format(", \"dtype\": \"{}\", \"shape\": ", dtype_name(tensor.dtype));
  append_list(out, tensor.shape);
  if (!tensor.byte_strides.empty()) {
    out += ", \"byte_strides\": ";
    append_list(out, tensor.byte_strides);
  }
  out += fmt::format(", \"offset\": {}, \"nbytes\": {}, \"crc32c\": \"{:08x}\"}}", tensor.offset, tensor.nbytes,
                     tensor.crc32c);
}

}  // namespace

bool SealedTensor::describes(const TensorInfo& tensor) const noexcept {
  return name == tensor.name && dtype == tensor.dtype && shape == tensor.shape && byte_strides == tensor.byte_strides &&
         offset == tensor.offset && nbytes == tensor.extent();
}

ByteRange Seal::block(std::size_t number) const noexcept {
  const std::uint64_t begin = number * block_size;
  return {begin, std::min(begin + block_size, size)};
}

const SealedTensor* Seal::find(std::string_view name) const noexcept {
  const auto found = std::lower_bound(tensors.begin(), tensors.end(), name,
                                      [](const SealedTensor& each, std::string_view key) { return each.name < key; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

std::string seal_file_name(std::string_view file_name) {
  return std::string(file_name) + std::string(kSealSuffix);
}

std::string_view sealed_file_name(std::string_view name) noexcept {
  return name.ends_with(kSealSuffix) ? name.substr(0, name.size() - kSealSuffix.size()) : name;
}

std::uint64_t count_blocks(std::uint64_t size, std::uint64_t block_size) noexcept {
  return size / block_size + (size % block_size != 0);
}

std::string encode_seal(const Seal& seal) {
  std::string out = fmt::format("{{\n  \"penstock.seal\": 1,\n  \"size\": {},\n", seal.size);
  if (!seal.sha256.empty()) out += fmt::format("  \"sha256\": \"{}\",\n", seal.sha256);
  out += fmt::format("  \"block_size\": {},\n  \"blocks\": \"{}\",\n  \"tensors\": [", seal.block_size,
                     encode_checksums(seal.blocks));
  for (const SealedTensor& tensor : seal.tensors) {
    out += &tensor == seal.tensors.data() ? "\n" : ",\n";
    append_tensor(out, tensor);
  }
  out += seal.tensors.empty() ? "],\n" : "\n  ],\n";
  const std::uint32_t checksum = crc32c(std::as_bytes(std::span(out)));
  return out + fmt::format("  \"crc32c\": \"{:08x}\"\n}}\n", checksum);
}

}  // namespace penstock
