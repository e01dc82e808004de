// convert(): tensors are read, converted and written block by block, so memory stays bounded whatever the size.
#include "penstock/convert.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <system_error>
#include <utility>

#include "api/convert/convert_source.h"
#include "api/convert/notes.h"
#include "api/convert/source_check.h"
#include "api/files/chunk_directory.h"
#include "api/files/file_bytes.h"
#include "api/files/reader_state.h"
#include "api/load/placement.h"
#include "api/load/range_reader.h"
#include "api/load/views.h"
#include "api/save/save.h"
#include "api/save/set_files.h"
#include "base/bytes.h"
#include "base/cast.h"
#include "base/error.h"
#include "format/checksums.h"
#include "format/shards.h"
#include "penstock/writer.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

// `check` (optional) sees what is read.
FillFunction make_fill(const std::shared_ptr<const RangeReader>& reader, const TensorInfo& tensor, DType dtype,
                       const std::shared_ptr<SourceCheck>& check) {
  const DType from = tensor.dtype;
  const auto read = [reader, check, &tensor](std::uint64_t offset, std::uint64_t nbytes, const auto& use) {
    reader->read(tensor.offset + offset, nbytes, [&](const std::byte* data) {
      if (check) check->look(tensor, tensor.offset + offset, nbytes, data);
      use(data);
    });
  };
  if (dtype == from) {
    return [read](std::uint64_t offset, std::span<std::byte> bytes) {
      read(offset, bytes.size(), [&](const std::byte* data) { std::memcpy(bytes.data(), data, bytes.size()); });
    };
  }
  const std::uint64_t from_width = dtype_bits(from) / 8;
  const std::uint64_t to_width = dtype_bits(dtype) / 8;
  return [=](std::uint64_t offset, std::span<std::byte> bytes) {
    const std::uint64_t count = bytes.size() / to_width;
    read(offset / to_width * from_width, count * from_width,
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

// The same of the set of the target's name: what appears takes its place. Only a single file may appear beside the set
// that is read (`beside`): shards need its index.
void check_set(std::span<const fs::path> sources, const fs::path& target, bool beside, bool overwrite) {
  std::error_code ignored;
  const auto is_source = [&](const fs::path& path) {
    return std::any_of(sources.begin(), sources.end(),
                       [&](const auto& each) { return fs::equivalent(each, path, ignored); });
  };
  const fs::path index = target.parent_path() / index_file_name(target.filename().native());
  if (!fs::is_regular_file(index, ignored)) return;
  // What nobody can read is in the way all the same.
  for (const std::string& name : read_index_files(index).value_or(std::vector<std::string>())) {
    if (!is_source(target.parent_path() / name)) continue;
    if (beside) return;
    throw_argument("{}: lists files of the source; a conversion never replaces what it reads", index.native());
  }
  check_target(sources, index, overwrite);
}

// Shards take the place of a single file of their name, unless it is what is read.
void check_single(std::span<const fs::path> sources, const fs::path& target, bool overwrite) {
  std::error_code ignored;
  const auto is_target = [&](const fs::path& source) { return fs::equivalent(source, target, ignored); };
  if (std::none_of(sources.begin(), sources.end(), is_target)) check_target(sources, target, overwrite);
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
  const std::vector<fs::path> targets = save.targets();
  for (const fs::path& path : targets) check_target(sources, path, overwrite);
  const fs::path& base = WriterAccess::state(writer).path;
  check_set(sources, base, /*beside=*/targets.size() == 1, overwrite);
  if (targets.size() > 1) check_single(sources, base, overwrite);
  save.prepare();
  save.write();
  // Before the new file gets its name: a source that changed meanwhile leaves nothing behind.
  check_sources();
  return save.publish(sources);
}

ConvertStats convert(const fs::path& source, const fs::path& target, const ConvertOptions& options) {
  return convert(std::span(&source, 1), target, options);
}

ConvertStats convert(std::span<const fs::path> sources, const fs::path& target, const ConvertOptions& options) {
  if (options.save.format == kChunksFormat) return make_chunks(sources, target, options);
  if (const auto fragments = find_fragments(sources); !fragments.empty()) {
    return merge_fragments(fragments, target, options);
  }
  if (const auto chunks = find_chunks(sources)) return merge_chunks(*chunks, target, options);
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
  std::vector<const TensorInfo*> wanted;
  for (const TensorInfo& tensor : reader.tensors()) {
    if (!options.select || options.select(tensor)) wanted.push_back(&tensor);
  }
  std::shared_ptr<SourceCheck> check;
  if (options.verify != Verify::kOff) check = std::make_shared<SourceCheck>(state, options.verify, wanted, files);
  Writer writer(target, save);
  TargetNames names(options, target);
  for (const TensorInfo* const selected : wanted) {
    const TensorInfo& tensor = *selected;
    notes.see_tensor(tensor);
    const DType dtype = loaded_dtype(tensor, options.dtype);
    writer.add(names.take(tensor.name), dtype, tensor.shape,
               tensor.byte_strides.empty() ? make_fill(files[tensor.file], tensor, dtype, check)
                                           : make_stored_view_fill(state, tensor, dtype));
  }
  Stats stats = save_conversion(writer, paths_of(reader), options.overwrite, [&] {
    if (check) check->finish();
    for (const auto& file : state.files) file->check_unchanged();
  });
  return {std::move(stats), notes.take()};
}

std::vector<TensorInfo> source_tensors(std::span<const fs::path> sources) {
  if (const auto fragments = find_fragments(sources); !fragments.empty()) return fragmented_tensors(fragments);
  if (const auto chunks = find_chunks(sources)) return chunked_tensors(*chunks);
  const Reader reader(sources);
  return {reader.tensors().begin(), reader.tensors().end()};
}

}  // namespace penstock
