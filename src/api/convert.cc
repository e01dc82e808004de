// convert(): tensors are read, converted and written block by block, so memory stays bounded whatever the size.
#include "penstock/convert.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>

#include "api/placement.h"
#include "api/reader_state.h"
#include "api/views.h"
#include "api/writer_state.h"
#include "base/bytes.h"
#include "base/cast.h"
#include "base/error.h"
#include "format/checksums.h"
#include "memory/arena.h"
#include "penstock/writer.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

// Reads ranges of a file past the page cache, from any thread.
class RangeReader {
 public:
  explicit RangeReader(std::shared_ptr<const File> file) : file_(std::move(file)), direct_(file_->direct()) {}

  // Calls `use` with the bytes of [offset, offset + nbytes).
  template <typename Use>
  void read(std::uint64_t offset, std::uint64_t nbytes, const Use& use) const {
    const std::uint64_t alignment = direct_.fd ? std::max<std::uint64_t>(direct_.alignment.offset, 1) : 1;
    const std::uint64_t begin = align_down(offset, alignment);
    const std::uint64_t length = align_up(offset + nbytes, alignment) - begin;
    thread_local Mapping scratch;
    if (scratch.size() < length) scratch = Mapping::anonymous(length, /*huge_pages=*/false);
    read_whole(begin, length, offset + nbytes - begin, scratch.data());
    use(scratch.data() + (offset - begin));
  }

 private:
  void read_whole(std::uint64_t begin, std::uint64_t length, std::uint64_t minimum, std::byte* data) const {
    if (direct_.fd) {
      const ssize_t count = ::pread(direct_.fd.get(), data, length, static_cast<off_t>(begin));
      if (count >= 0 && static_cast<std::uint64_t>(count) >= minimum) return;
    }
    // Short, interrupted or refused: the careful way, which also says what is wrong.
    file_->read(begin, data, minimum);
  }

  std::shared_ptr<const File> file_;
  const File::Direct& direct_;
};

// A conversion never replaces what it reads, nor anything else unless it was asked to.
void check_target(const Reader& reader, const fs::path& target, bool overwrite) {
  std::error_code ignored;
  for (const FileInfo& file : reader.files()) {
    if (!fs::equivalent(file.path, target, ignored)) continue;
    throw_argument("{}: is a file of the source; a conversion never replaces what it reads", target.native());
  }
  if (!overwrite && fs::exists(fs::symlink_status(target, ignored))) {
    throw Error(ErrorKind::kArgument, fmt::format("{}: exists already; ask for it to be replaced", target.native()),
                EEXIST);
  }
}

FillFunction make_fill(std::shared_ptr<const RangeReader> reader, const TensorInfo& tensor, DType dtype) {
  const std::uint64_t base = tensor.offset;
  const DType from = tensor.dtype;
  if (dtype == from) {
    return [reader, base](std::uint64_t offset, std::span<std::byte> bytes) {
      reader->read(base + offset, bytes.size(),
                   [&](const std::byte* data) { std::memcpy(bytes.data(), data, bytes.size()); });
    };
  }
  const std::uint64_t from_width = dtype_bits(from) / 8;
  const std::uint64_t to_width = dtype_bits(dtype) / 8;
  return [=](std::uint64_t offset, std::span<std::byte> bytes) {
    const std::uint64_t count = bytes.size() / to_width;
    reader->read(base + offset / to_width * from_width, count * from_width,
                 [&](const std::byte* data) { cast_elements(from, data, dtype, bytes.data(), count); });
  };
}

// A view is loaded when the first of its bytes is wanted, and kept until as many were as it has. A save may want some
// twice, for a checksum and for the file: then it is loaded again.
class ViewSource {
 public:
  ViewSource(const Reader::State& state, const TensorInfo& view, DType dtype) : state_(state), view_(view) {
    options_.dtype = dtype;
  }

  void read(std::uint64_t offset, std::span<std::byte> bytes) {
    const std::shared_ptr<const Tensor> tensor = take(bytes.size());
    std::memcpy(bytes.data(), tensor->bytes.data() + offset, bytes.size());
  }

 private:
  std::shared_ptr<const Tensor> take(std::uint64_t nbytes) {
    const std::lock_guard lock(mutex_);
    if (tensor_ == nullptr) {
      tensor_ = std::make_shared<const Tensor>(load_view(state_, view_, options_));
      left_ = tensor_->bytes.size();
    }
    left_ -= std::min(left_, nbytes);
    return left_ == 0 ? std::exchange(tensor_, nullptr) : tensor_;
  }

  const Reader::State& state_;
  const TensorInfo& view_;
  LoadOptions options_;
  std::mutex mutex_;
  std::shared_ptr<const Tensor> tensor_;
  std::uint64_t left_ = 0;  // bytes that nobody asked for yet
};

FillFunction make_view_fill(const Reader::State& state, const TensorInfo& tensor, DType dtype) {
  auto source = std::make_shared<ViewSource>(state, tensor, dtype);
  return [source](std::uint64_t offset, std::span<std::byte> bytes) { source->read(offset, bytes); };
}

}  // namespace

Stats convert(const fs::path& source, const fs::path& target, const ConvertOptions& options) {
  const Reader reader(source);
  const Reader::State& state = ReaderAccess::state(reader);
  SaveOptions save = options.save;
  if (options.keep_metadata) {
    for (const auto& [key, value] : reader.metadata()) {
      // Checksums of the old layout mean nothing for the new one.
      if (key != kChecksumKey && key != "total_size") save.metadata.emplace(key, value);
    }
  }
  std::vector<std::shared_ptr<const RangeReader>> files;
  for (const auto& file : state.files) files.push_back(std::make_shared<const RangeReader>(file));
  Writer writer(target, save);
  for (const TensorInfo& tensor : reader.tensors()) {
    if (options.select && !options.select(tensor)) continue;
    const DType dtype = loaded_dtype(tensor, options.dtype);
    writer.add(tensor.name, dtype, tensor.shape,
               tensor.byte_strides.empty() ? make_fill(files[tensor.file], tensor, dtype)
                                           : make_view_fill(state, tensor, dtype));
  }
  SaveHooks hooks;
  hooks.keep_index = true;
  hooks.check_target = [&](const fs::path& path) { check_target(reader, path, options.overwrite); };
  // Before the new file gets its name: a source that changed meanwhile leaves nothing behind.
  hooks.all_read = [&state] {
    for (const auto& file : state.files) file->check_unchanged();
  };
  return run_save(WriterAccess::state(writer), hooks);
}

}  // namespace penstock
