// convert(): tensors are read, converted and written block by block, so memory stays bounded whatever the size.
#include "penstock/convert.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>

#include "api/convert/convert_source.h"
#include "api/convert/notes.h"
#include "api/files/file_bytes.h"
#include "api/files/reader_state.h"
#include "api/load/placement.h"
#include "api/load/range_reader.h"
#include "api/load/views.h"
#include "api/save/save.h"
#include "base/bytes.h"
#include "base/cast.h"
#include "base/error.h"
#include "format/checksums.h"
#include "penstock/writer.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

FillFunction make_fill(const std::shared_ptr<const RangeReader>& reader, const TensorInfo& tensor, DType dtype) {
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

// All of it is in memory while it is wanted; see make_view_fill.
class ViewSource {
 public:
  explicit ViewSource(std::function<Tensor()> load) : load_(std::move(load)) {}

  void read(std::uint64_t offset, std::span<std::byte> bytes) {
    const std::shared_ptr<const Tensor> tensor = take(bytes.size());
    std::memcpy(bytes.data(), tensor->bytes.data() + offset, bytes.size());
  }

 private:
  std::shared_ptr<const Tensor> take(std::uint64_t nbytes) {
    const std::lock_guard lock(mutex_);
    if (tensor_ == nullptr) {
      tensor_ = std::make_shared<const Tensor>(load_());
      left_ = tensor_->bytes.size();
    }
    left_ -= std::min(left_, nbytes);
    return left_ == 0 ? std::exchange(tensor_, nullptr) : tensor_;
  }

  const std::function<Tensor()> load_;
  std::mutex mutex_;
  std::shared_ptr<const Tensor> tensor_;
  std::uint64_t left_ = 0;  // bytes that nobody asked for yet
};

FillFunction make_stored_view_fill(const Reader::State& state, const TensorInfo& tensor, DType dtype) {
  LoadOptions options;
  options.dtype = dtype;
  return make_view_fill([&state, &tensor, options] { return load_view(state, tensor, options); });
}

// A conversion never replaces what it reads, nor anything else unless it was asked to.
void check_target(std::span<const fs::path> sources, const fs::path& target, bool overwrite) {
  std::error_code ignored;
  for (const fs::path& source : sources) {
    if (!fs::equivalent(source, target, ignored)) continue;
    throw_argument("{}: is a file of the source; a conversion never replaces what it reads", target.native());
  }
  if (!overwrite && fs::exists(fs::symlink_status(target, ignored))) {
    throw Error(ErrorKind::kArgument,
                fmt::format("{}: exists already; overwrite=True (--force) replaces it", target.native()), EEXIST);
  }
}

std::vector<fs::path> paths_of(const Reader& reader) {
  std::vector<fs::path> paths;
  for (const FileInfo& file : reader.files()) paths.push_back(file.path);
  return paths;
}

// Checksums of the old layout mean nothing for the new one.
bool is_of_layout(const std::string& key) {
  return key == kChecksumKey || key == "total_size";
}

// `save` gets the source's metadata, as far as its format holds any.
void choose_metadata(const Reader::State& state, const ConvertOptions& options, SaveOptions& save,
                     ConversionNotes& notes) {
  if (options.keep_metadata) {
    for (const auto& [key, value] : state.metadata) {
      if (!is_of_layout(key)) save.metadata.emplace(key, value);
    }
    for (const auto& entry : state.metadata) {
      const auto contradicts = [&entry](const FileInfo& file) {
        const auto found = file.metadata.find(entry.first);
        return found != file.metadata.end() && found->second != entry.second;
      };
      const bool differs = std::any_of(state.infos.begin(), state.infos.end(), contradicts);
      if (differs && !is_of_layout(entry.first)) notes.see_conflict(entry.first);
    }
  }
  notes.fit(save, state.metadata.contains(std::string(kChecksumKey)));
}

void note_trees(const Reader::State& state, ConversionNotes& notes) {
  for (std::size_t i = 0; i < state.files.size(); ++i) {
    if (!has_pickle(state.infos[i].format) || state.infos[i].unpacked) continue;
    notes.see_tree(*torch::read_checkpoint(FileBytes(*state.files[i])).tree);
  }
}

}  // namespace

FillFunction make_view_fill(std::function<Tensor()> load) {
  auto source = std::make_shared<ViewSource>(std::move(load));
  return [source](std::uint64_t offset, std::span<std::byte> bytes) { source->read(offset, bytes); };
}

std::string TargetNames::take(const std::string& name) {
  if (!options_.rename) return name;
  std::string renamed = options_.rename(name);
  const auto [entry, is_new] = taken_.emplace(renamed, name);
  if (!is_new) {
    throw_argument("{}: tensors {} and {} would both be called {}", target_.native(), in_quotes(entry->second),
                   in_quotes(name), in_quotes(renamed));
  }
  return renamed;
}

Stats save_conversion(Writer& writer, std::span<const fs::path> sources, bool overwrite,
                      const std::function<void()>& check_sources) {
  Save save(WriterAccess::state(writer));
  for (const fs::path& path : save.targets()) check_target(sources, path, overwrite);
  save.prepare();
  save.write();
  // Before the new file gets its name: a source that changed meanwhile leaves nothing behind.
  check_sources();
  return save.publish(/*keep_index=*/true);
}

ConvertStats convert(const fs::path& source, const fs::path& target, const ConvertOptions& options) {
  return convert(std::span(&source, 1), target, options);
}

ConvertStats convert(std::span<const fs::path> sources, const fs::path& target, const ConvertOptions& options) {
  if (const auto fragments = find_fragments(sources); !fragments.empty()) {
    return merge_fragments(fragments, target, options);
  }
  const Reader reader(sources);
  const Reader::State& state = ReaderAccess::state(reader);
  ConversionNotes notes;
  SaveOptions save = options.save;
  save.format = format_for_save(save.format, target.native());
  choose_metadata(state, options, save, notes);
  note_trees(state, notes);
  for (const TensorInfo& tensor : reader.tensors()) {
    if (options.select && !options.select(tensor)) continue;
    state.require_unpacked(tensor.file, {tensor.offset, tensor.offset + tensor.extent()});
  }
  std::vector<std::shared_ptr<const RangeReader>> files;
  for (const auto& file : state.files) files.push_back(std::make_shared<const RangeReader>(file));
  Writer writer(target, save);
  TargetNames names(options, target);
  for (const TensorInfo& tensor : reader.tensors()) {
    if (options.select && !options.select(tensor)) continue;
    notes.see_tensor(tensor);
    const DType dtype = loaded_dtype(tensor, options.dtype);
    writer.add(names.take(tensor.name), dtype, tensor.shape,
               tensor.byte_strides.empty() ? make_fill(files[tensor.file], tensor, dtype)
                                           : make_stored_view_fill(state, tensor, dtype));
  }
  Stats stats = save_conversion(writer, paths_of(reader), options.overwrite, [&state] {
    for (const auto& file : state.files) file->check_unchanged();
  });
  return {std::move(stats), notes.take()};
}

}  // namespace penstock
