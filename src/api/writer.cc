#include "penstock/writer.h"

#include <algorithm>

#include "api/writer_state.h"
#include "base/bytes.h"
#include "base/error.h"
#include "format/detect.h"
#include "transfer/strided.h"

namespace penstock {
namespace {

// The bytes that a strided tensor touches: [lowest, highest).
std::pair<const std::byte*, const std::byte*> extent_of(const std::byte* data, const Shape& shape,
                                                        std::span<const std::int64_t> strides, std::uint64_t width) {
  const std::byte* low = data;
  const std::byte* high = data + width;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return {data, data};
    const std::int64_t reach = (shape[i] - 1) * strides[i];
    (reach < 0 ? low : high) += reach;
  }
  return {low, high};
}

TensorSpec make_spec(const std::string& path, std::string name, DType dtype, Shape shape) {
  TensorSpec spec{std::move(name), dtype, std::move(shape), 0};
  try {
    spec.nbytes = tensor_nbytes(dtype, spec.shape, path, spec.name);
  } catch (const Error& error) {
    throw Error(ErrorKind::kArgument, error.what());
  }
  return spec;
}

}  // namespace

Writer::Writer(std::filesystem::path path, SaveOptions options) : state_(std::make_unique<State>()) {
  options.format = format_for_save(options.format, path.native());
  state_->path = std::move(path);
  state_->options = std::move(options);
}

Writer::Writer(Writer&&) noexcept = default;
Writer& Writer::operator=(Writer&&) noexcept = default;
Writer::~Writer() = default;

void Writer::add(std::string name, DType dtype, Shape shape, const void* data) {
  const auto* bytes = static_cast<const std::byte*>(data);
  TensorSpec spec = make_spec(state_->path.native(), std::move(name), dtype, std::move(shape));
  if (bytes == nullptr && spec.nbytes > 0) throw_argument("tensor {} has no data", in_quotes(spec.name));
  state_->nbytes += spec.nbytes;
  state_->extents.emplace_back(bytes, bytes + spec.nbytes);
  state_->strides.emplace_back();
  state_->origins.push_back({bytes, {}});
  state_->specs.push_back(std::move(spec));
}

void Writer::add(std::string name, DType dtype, Shape shape, const void* data,
                 std::span<const std::int64_t> byte_strides) {
  if (byte_strides.size() != shape.size()) {
    throw_argument("tensor {} has {} dimensions and {} strides", in_quotes(name), shape.size(), byte_strides.size());
  }
  if (dtype_bits(dtype) < 8) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("tensor {}: {} can't be strided", in_quotes(name), dtype_name(dtype)));
  }
  const std::uint64_t width = dtype_bits(dtype) / 8;
  if (is_contiguous(shape, byte_strides, width)) return add(std::move(name), dtype, std::move(shape), data);
  const auto* bytes = static_cast<const std::byte*>(data);
  TensorSpec spec = make_spec(state_->path.native(), std::move(name), dtype, std::move(shape));
  if (bytes == nullptr && spec.nbytes > 0) throw_argument("tensor {} has no data", in_quotes(spec.name));
  auto reader = std::make_shared<const StridedReader>(
      bytes, spec.shape, std::vector<std::int64_t>(byte_strides.begin(), byte_strides.end()), width);
  state_->nbytes += spec.nbytes;
  state_->extents.push_back(extent_of(bytes, spec.shape, byte_strides, width));
  state_->strides.emplace_back(byte_strides.begin(), byte_strides.end());
  state_->origins.push_back(
      {nullptr, [reader](std::uint64_t offset, std::span<std::byte> out) { reader->read(offset, out); }});
  state_->specs.push_back(std::move(spec));
}

void Writer::add(std::string name, DType dtype, Shape shape, FillFunction fill) {
  if (!fill) throw_argument("tensor {} has no data", in_quotes(name));
  TensorSpec spec = make_spec(state_->path.native(), std::move(name), dtype, std::move(shape));
  state_->nbytes += spec.nbytes;
  state_->extents.emplace_back(nullptr, nullptr);
  state_->strides.emplace_back();
  state_->origins.push_back({nullptr, std::move(fill)});
  state_->specs.push_back(std::move(spec));
}

std::uint64_t Writer::nbytes() const noexcept {
  return state_->nbytes;
}

Stats Writer::commit() {
  return run_save(*state_, {});
}

Writer::State& WriterAccess::state(Writer& writer) {
  return *writer.state_;
}

}  // namespace penstock
