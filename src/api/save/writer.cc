#include "penstock/writer.h"

#include <algorithm>

#include "api/save/save.h"
#include "api/save/writer_state.h"
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
  if (options.format != "flashpack" && options.flashpack != FlashPackOptions{}) {
    throw_argument("{}: alignment and order can be chosen for FlashPack files only", path.native());
  }
  const bool is_torch = options.format == torch::kZipFormat || options.format == torch::kLegacyFormat;
  if (!is_torch && options.torch != TorchOptions{}) {
    throw_argument("{}: records and a pickle can be chosen for torch files only", path.native());
  }
  if (!has_metadata(options.format) && (!options.metadata.empty() || options.checksums)) {
    throw_argument("{}: a torch file holds no metadata and no CRC-32C; a zip has its own checksums", path.native());
  }
  if (options.dtype && !dtype_can_cast(DType::kF32, *options.dtype)) {
    throw_argument("{}: floating tensors can't be converted to {}", path.native(), dtype_name(*options.dtype));
  }
  state_->path = std::move(path);
  state_->options = std::move(options);
}

Writer::Writer(Writer&&) noexcept = default;
Writer& Writer::operator=(Writer&&) noexcept = default;
Writer::~Writer() = default;

void Writer::add(std::string name, DType dtype, Shape shape, const void* data) {
  const auto* bytes = static_cast<const std::byte*>(data);
  const TensorSpec spec = make_spec(state_->path.native(), name, dtype, shape);
  if (bytes == nullptr && spec.nbytes > 0) throw_argument("tensor {} has no data", in_quotes(spec.name));
  state_->add(std::move(name), dtype, std::move(shape), {bytes, {}}, {bytes, bytes + spec.nbytes}, bytes, {});
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
  const TensorSpec spec = make_spec(state_->path.native(), name, dtype, shape);
  if (bytes == nullptr && spec.nbytes > 0) throw_argument("tensor {} has no data", in_quotes(spec.name));
  std::vector<std::int64_t> strides(byte_strides.begin(), byte_strides.end());
  auto reader = std::make_shared<const StridedReader>(bytes, spec.shape, strides, width);
  const auto extent = extent_of(bytes, spec.shape, byte_strides, width);
  Origin origin{nullptr, [reader](std::uint64_t offset, std::span<std::byte> out) { reader->read(offset, out); }};
  state_->add(std::move(name), dtype, std::move(shape), std::move(origin), extent, bytes, std::move(strides));
}

void Writer::add(std::string name, DType dtype, Shape shape, FillFunction fill) {
  if (!fill) throw_argument("tensor {} has no data", in_quotes(name));
  state_->add(std::move(name), dtype, std::move(shape), {nullptr, std::move(fill)}, {}, nullptr, {});
}

// Everything that is written passes here, and is converted on the way if the options ask for it.
void Writer::State::add(std::string name, DType dtype, Shape shape, Origin origin, AddedTensor::Extent extent,
                        const std::byte* data, std::vector<std::int64_t> byte_strides) {
  const DType stored = options.dtype && dtype_can_cast(dtype, *options.dtype) ? *options.dtype : dtype;
  TensorSpec spec = make_spec(path.native(), std::move(name), stored, std::move(shape));
  nbytes += spec.nbytes;
  if (stored != dtype) origin = cast_origin(std::move(origin), dtype, stored);
  tensors.push_back({std::move(spec), std::move(origin), extent, data, std::move(byte_strides), dtype, nullptr});
}

void Writer::State::begin_commit() {
  if (std::exchange(committed, true)) throw_argument("{}: this Writer was committed before", path.native());
}

std::uint64_t Writer::nbytes() const noexcept {
  return state_->nbytes;
}

Stats Writer::commit() {
  find_devices(*state_);
  wait_for_streams(*state_);
  return save(*state_);
}

Writer::State& WriterAccess::state(Writer& writer) {
  return *writer.state_;
}

}  // namespace penstock
