#include "api/load/target_memory.h"

#include "api/load/placement.h"
#include "base/error.h"
#include "format/layout.h"

namespace penstock {
namespace {

void check_strides(const Target& target, const Shape& shape, DType dtype, const std::string& path) {
  if (target.byte_strides.size() != shape.size()) {
    throw_argument("{}: tensor {} has {} dimensions and {} strides", path, in_quotes(target.name), shape.size(),
                   target.byte_strides.size());
  }
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 2 || target.byte_strides[i] > 0) continue;
    throw_argument("{}: tensor {}: its target has the stride {} in dimension {}: strides are positive", path,
                   in_quotes(target.name), target.byte_strides[i], i);
  }
  if (dtype_bits(dtype) < 8) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{}: tensor {}: {} can't be strided", path, in_quotes(target.name), dtype_name(dtype)));
  }
}

}  // namespace

TargetMemory::TargetMemory(const Target& target, const TensorInfo& tensor, const Shape& shape, DType dtype,
                           const std::string& path)
    : address_(reinterpret_cast<std::uintptr_t>(target.bytes.data())), width_(dtype_bits(dtype) / 8) {
  std::uint64_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::uint64_t>(size);
  const bool is_strided = !target.byte_strides.empty() && count > 0;
  std::uint64_t expected = count * dtype_bits(dtype) / 8;
  if (is_strided) {
    check_strides(target, shape, dtype, path);
    expected = width_;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      expected += static_cast<std::uint64_t>(shape[i] - 1) * static_cast<std::uint64_t>(target.byte_strides[i]);
    }
  }
  if (target.bytes.size() != expected) {
    throw Error(ErrorKind::kArgument, fmt::format("{}: {}tensor {} has {} bytes as {}, its target has {}", path,
                                                  target.part.empty() ? "" : "the part of ", in_quotes(tensor.name),
                                                  expected, dtype_name(dtype), target.bytes.size()));
  }
  run_length_ = std::max<std::uint64_t>(count, 1);
  if (!is_strided) return;
  // From the inside out, for as long as elements are neighbours.
  std::size_t outer = shape.size();
  std::uint64_t run = 1;
  while (outer > 0) {
    const auto size = static_cast<std::uint64_t>(shape[outer - 1]);
    if (size > 1 && static_cast<std::uint64_t>(target.byte_strides[outer - 1]) != run * width_) break;
    run *= size;
    --outer;
  }
  run_length_ = run;
  stretches_ = count / run;
  shape_.assign(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(outer));
  strides_.assign(target.byte_strides.begin(), target.byte_strides.begin() + static_cast<std::ptrdiff_t>(outer));
}

std::uint64_t TargetMemory::address_of(std::uint64_t element) const noexcept {
  std::uint64_t address = address_ + element % run_length_ * width_;
  std::uint64_t stretch = element / run_length_;
  for (std::size_t i = shape_.size(); i-- > 0;) {
    const auto size = static_cast<std::uint64_t>(shape_[i]);
    address += stretch % size * static_cast<std::uint64_t>(strides_[i]);
    stretch /= size;
  }
  return address;
}

void TargetMemory::add_runs(const PartRuns& runs, std::uint32_t owner, DType from, DType to,
                            std::vector<Segment>& segments) const {
  if (is_one_stretch()) {
    penstock::add_runs(runs, address_, owner, from, to, segments);
    return;
  }
  const std::uint64_t width = dtype_bits(from) / 8;
  std::uint64_t element = 0;
  runs.for_each([&](std::uint64_t offset, std::uint64_t nbytes) {
    const std::uint64_t first = element;
    for_each(first, nbytes / width, [&](std::uint64_t at, std::uint64_t count, std::uint64_t address) {
      segments.push_back({offset + (at - first) * width, count * width, address, owner, from, to});
    });
    element += nbytes / width;
  });
}

}  // namespace penstock
