#include "format/layout.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/bytes.h"
#include "base/error.h"

namespace penstock {
namespace {

bool comes_before(const TensorInfo& a, const TensorInfo& b) noexcept {
  if (a.offset != b.offset) return a.offset < b.offset;
  if (a.nbytes != b.nbytes) return a.nbytes < b.nbytes;
  return a.name < b.name;
}

}  // namespace

std::uint64_t TensorInfo::extent() const noexcept {
  if (byte_strides.empty() || nbytes == 0) return nbytes;
  std::uint64_t end = dtype_bits(dtype) / 8;
  for (std::size_t i = 0; i < shape.size(); ++i) end += static_cast<std::uint64_t>((shape[i] - 1) * byte_strides[i]);
  return end;
}

void sort_by_offset(std::vector<TensorInfo>& tensors) {
  if (std::is_sorted(tensors.begin(), tensors.end(), comes_before)) return;
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return comes_before(tensors[a], tensors[b]); });
  std::vector<TensorInfo> sorted;
  sorted.reserve(tensors.size());
  for (const std::uint32_t i : order) sorted.push_back(std::move(tensors[i]));
  tensors = std::move(sorted);
}

NbytesResult try_tensor_nbytes(DType dtype, std::span<const std::int64_t> shape) noexcept {
  // Zeros are left out of the product, so that the answer does not depend on the order of the dimensions.
  std::uint64_t bits = dtype_bits(dtype);
  bool empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return {0, "has a negative dimension"};
    if (dimension == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(dimension), &bits)) {
      return {0, "takes more than 2^64 bits"};
    }
  }
  if (empty) return {0, nullptr};
  if (bits % 8 != 0) return {0, "does not fill whole bytes"};
  return {bits / 8, nullptr};
}

std::uint64_t tensor_nbytes(DType dtype, std::span<const std::int64_t> shape, std::string_view path,
                            std::string_view name) {
  const NbytesResult result = try_tensor_nbytes(dtype, shape);
  if (result.problem != nullptr) {
    throw_format(path, "tensor {}: {} {} {}", in_quotes(name), dtype_name(dtype), shape_text(shape), result.problem);
  }
  return result.nbytes;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  constexpr std::size_t kMostShown = 16;
  std::string text = "[";
  for (std::size_t i = 0; i < std::min(shape.size(), kMostShown); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  }
  if (shape.size() > kMostShown) text += fmt::format(", ... {} dimensions", shape.size());
  return text + "]";
}

std::optional<std::pair<std::size_t, std::size_t>> find_duplicate(std::span<const std::string_view> names) {
  const auto not_ascending = [](std::string_view a, std::string_view b) { return a >= b; };
  if (std::adjacent_find(names.begin(), names.end(), not_ascending) == names.end()) return std::nullopt;

  // Sorted by hash, then by name: the names themselves are compared only where hashes agree, and names that were made
  // to collide cost a comparison more and not a quadratic number of them.
  struct Entry {
    std::size_t hash;
    std::size_t place;
  };
  std::vector<Entry> entries(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) entries[i] = {std::hash<std::string_view>{}(names[i]), i};
  std::sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
    if (a.hash != b.hash) return a.hash < b.hash;
    const int order = names[a.place].compare(names[b.place]);
    return order != 0 ? order < 0 : a.place < b.place;
  });
  const auto found = std::adjacent_find(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
    return a.hash == b.hash && names[a.place] == names[b.place];
  });
  if (found == entries.end()) return std::nullopt;
  return std::pair{found->place, std::next(found)->place};
}

}  // namespace penstock
