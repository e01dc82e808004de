// Reading: the length, the header, and whether the tensors fill the rest of the file exactly.
#include "format/safetensors.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>

#include "base/bytes.h"
#include "base/error.h"
#include "format/safetensors_header.h"

namespace penstock::safetensors {
namespace {

constexpr std::uint64_t kMinHeaderLength = 2;  // {}

std::uint64_t load_u64le(const std::array<std::byte, 8>& bytes) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 8; i-- > 0;) value = (value << 8) | std::to_integer<std::uint64_t>(bytes[i]);
  return value;
}

std::uint64_t read_header_length(const ByteSource& source) {
  const std::uint64_t size = source.size();
  if (size < kHeaderStart + kMinHeaderLength) {
    throw_format(source.path(), "{} bytes are too few for a safetensors file, which has at least {}", size,
                 kHeaderStart + kMinHeaderLength);
  }
  std::array<std::byte, 8> bytes;
  source.read(0, bytes);
  const std::uint64_t length = load_u64le(bytes);
  if (length > kMaxHeaderLength) {
    throw_format(source.path(), "byte 0: the header length is {}, more than the limit of {}", length, kMaxHeaderLength);
  }
  if (length > size - kHeaderStart) {
    throw_format(source.path(), "byte 0: the header length is {}, but only {} bytes follow it", length,
                 size - kHeaderStart);
  }
  if (length < kMinHeaderLength) {
    throw_format(source.path(), "byte 0: the header length is {}, less than the {} of an empty header", length,
                 kMinHeaderLength);
  }
  return length;
}

void check_names_differ(const std::vector<TensorInfo>& tensors, std::string_view path) {
  std::vector<std::string_view> names(tensors.size());
  std::transform(tensors.begin(), tensors.end(), names.begin(),
                 [](const TensorInfo& t) { return std::string_view(t.name); });
  if (const auto duplicate = find_duplicate(names)) {
    throw_format(path, "tensor {} appears twice in the header", in_quotes(names[duplicate->first]));
  }
}

// Each tensor begins where the one before it ends, the first at 0 and the last ends with the file.
void check_contiguous(const std::vector<TensorInfo>& tensors, std::uint64_t data_size, std::string_view path) {
  std::uint64_t expected = 0;
  const TensorInfo* previous = nullptr;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset != expected) {
      const bool hole = tensor.offset > expected;
      const std::string neighbour =
          previous == nullptr ? "the start" : fmt::format("tensor {}", in_quotes(previous->name));
      throw_format(path, "tensor {}: its data begins at {}, expected {}: {} {}", in_quotes(tensor.name), tensor.offset,
                   expected, hole ? "a hole after" : "it overlaps", neighbour);
    }
    expected = tensor.offset + tensor.nbytes;
    previous = &tensor;
  }
  if (expected == data_size) return;
  if (expected > data_size) {
    throw_format(path, "truncated: the tensors take {} bytes, but the file has {} after its header", expected,
                 data_size);
  }
  throw_format(path, "bytes after the last tensor: the tensors take {}, but the file has {} after its header", expected,
               data_size);
}

}  // namespace

bool has_dtype(DType dtype) noexcept {
  return dtype != DType::kC32 && dtype != DType::kC128;
}

bool looks_like(const ByteSource& source) {
  constexpr std::size_t kSample = 64;
  if (source.size() <= kHeaderStart) return false;
  std::array<std::byte, kSample> bytes;
  const std::size_t length = std::min<std::size_t>(kSample, source.size() - kHeaderStart);
  source.read(kHeaderStart, std::span(bytes).first(length));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), length);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

Layout parse(const ByteSource& source) {
  const std::uint64_t length = read_header_length(source);
  auto header = std::make_unique_for_overwrite<char[]>(length + 1);
  source.read(kHeaderStart, std::as_writable_bytes(std::span(header.get(), length)));
  header[length] = '\0';
  Layout layout = parse_header({header.get(), length}, source.path());
  header.reset();
  sort_by_offset(layout.tensors);
  check_names_differ(layout.tensors, source.path());
  const std::uint64_t data_start = kHeaderStart + length;
  check_contiguous(layout.tensors, source.size() - data_start, source.path());
  for (TensorInfo& tensor : layout.tensors) tensor.offset += data_start;
  layout.format = "safetensors";
  return layout;
}

}  // namespace penstock::safetensors
