// merge_fragments(): what FastPersist's writers left in pieces becomes one file, block by block.
#include <algorithm>
#include <cstring>

#include "api/convert/convert_source.h"
#include "api/convert/notes.h"
#include "api/files/file_bytes.h"
#include "api/load/range_reader.h"
#include "base/error.h"
#include "format/detect.h"
#include "format/torch_file.h"
#include "format/torch_fragments.h"
#include "transfer/strided.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

// The fragments of one file, open, and the file that they are parts of.
class Fragments {
 public:
  explicit Fragments(const std::vector<fs::path>& paths) {
    for (const fs::path& path : paths) {
      files_.push_back(std::make_shared<const File>(File::open(path)));
      readers_.emplace_back(files_.back());
    }
    bytes_.reserve(files_.size());
    std::vector<const ByteSource*> sources;
    for (const auto& file : files_) sources.push_back(&bytes_.emplace_back(*file));
    const fs::path stem =
        paths.front().parent_path() / torch::parse_fragment_name(paths.front().filename().native())->stem;
    merged_ = std::make_unique<const torch::MergedFragments>(std::move(sources), stem.native());
  }

  const torch::MergedFragments& merged() const { return *merged_; }

  // Of the merged file, past the page cache. Safe from several threads.
  void read(std::uint64_t offset, std::span<std::byte> bytes) const {
    merged_->for_each_piece(offset, bytes.size(), [&](const torch::FragmentPiece& piece) {
      readers_[piece.fragment].read(piece.offset, piece.nbytes, [&](const std::byte* data) {
        std::memcpy(bytes.data() + (piece.at - offset), data, piece.nbytes);
      });
    });
  }

  void check_unchanged() const {
    for (const auto& file : files_) file->check_unchanged();
  }

 private:
  std::vector<std::shared_ptr<const File>> files_;
  std::vector<RangeReader> readers_;
  std::vector<FileBytes> bytes_;
  std::unique_ptr<const torch::MergedFragments> merged_;
};

// torch's suffixes stand for a zip elsewhere. Here they stand for the file that the writers were to write.
std::string choose_format(const std::string& requested, const fs::path& target) {
  const std::string format = format_for_save(requested, target.native());
  return requested.empty() && format == torch::kZipFormat ? std::string(torch::kLegacyFormat) : format;
}

FillFunction make_range_fill(const Fragments& fragments, std::uint64_t base) {
  return [&fragments, base](std::uint64_t offset, std::span<std::byte> bytes) { fragments.read(base + offset, bytes); };
}

// The object as it was: its pickle, and its storages under their keys.
Writer write_object(const Fragments& fragments, const torch::Checkpoint& checkpoint, const fs::path& target,
                    SaveOptions save) {
  const torch::LegacyHead& head = fragments.merged().head();
  save.torch.pickle = std::string(head.object());
  save.torch.around_pickle.emplace(head.text->substr(0, head.object_begin), head.text->substr(head.object_end));
  Writer writer(target, std::move(save));
  for (std::size_t i = 0; i < checkpoint.storage_offsets.size(); ++i) {
    const torch::Storage& storage = checkpoint.tree->storages()[i];
    writer.add(storage.key, storage.dtype, {static_cast<std::int64_t>(storage.count)},
               make_range_fill(fragments, checkpoint.storage_offsets[i]));
  }
  return writer;
}

Tensor in_rows(const TensorInfo& view, const std::vector<std::byte>& extent) {
  const auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(view.nbytes));
  StridedReader(extent.data(), view.shape, view.byte_strides, dtype_bits(view.dtype) / 8).read(0, *bytes);
  return {view.name, view.dtype, view.shape, *bytes, bytes};
}

// An array that lies in the pickle.
Tensor unpack(const Fragments& fragments, const TensorInfo& array, const PackedBytes& part) {
  const auto bytes = std::make_shared<std::vector<std::byte>>();
  part.unpack(fragments.merged(),
              [&](std::span<const std::byte> piece) { bytes->insert(bytes->end(), piece.begin(), piece.end()); });
  if (bytes->size() != array.nbytes) {
    throw_format(fragments.merged().path(), "array {} has {} bytes, expected {}", in_quotes(array.name), bytes->size(),
                 array.nbytes);
  }
  if (!array.byte_strides.empty()) return in_rows(array, *bytes);
  return {array.name, array.dtype, array.shape, *bytes, bytes};
}

Tensor gather(const Fragments& fragments, const TensorInfo& view) {
  if (view.nbytes > view.extent() && view.nbytes > fragments.merged().size()) {
    throw_format(fragments.merged().path(), "tensor {} repeats its {} bytes to {}, more than the file has",
                 in_quotes(view.name), view.extent(), view.nbytes);
  }
  std::vector<std::byte> extent(static_cast<std::size_t>(view.extent()));
  fragments.read(view.offset, extent);
  return in_rows(view, extent);
}

// The tensors by their paths, as other conversions write them.
Writer write_tensors(const Fragments& fragments, const torch::Checkpoint& checkpoint, const fs::path& target,
                     const ConvertOptions& options, SaveOptions save, ConversionNotes& notes) {
  notes.see_tree(*checkpoint.tree);
  if (options.dtype) save.dtype = options.dtype;
  Writer writer(target, std::move(save));
  TargetNames names(options, target);
  const Layout layout = torch::make_layout(checkpoint, fragments.merged().path());
  for (const TensorInfo& tensor : layout.packed_tensors) {
    if (options.select && !options.select(tensor)) continue;
    const auto part = std::find_if(layout.packed.begin(), layout.packed.end(),
                                   [&](const PackedBytes& each) { return each.offset == tensor.offset; });
    writer.add(names.take(tensor.name), tensor.dtype, tensor.shape,
               make_view_fill([&fragments, tensor, part = *part] { return unpack(fragments, tensor, part); }));
  }
  for (const TensorInfo& tensor : layout.tensors) {
    if (options.select && !options.select(tensor)) continue;
    notes.see_tensor(tensor);
    writer.add(names.take(tensor.name), tensor.dtype, tensor.shape,
               tensor.byte_strides.empty()
                   ? make_range_fill(fragments, tensor.offset)
                   : make_view_fill([&fragments, tensor] { return gather(fragments, tensor); }));
  }
  return writer;
}

}  // namespace

ConvertStats merge_fragments(const std::vector<fs::path>& paths, const fs::path& target,
                             const ConvertOptions& options) {
  const Fragments fragments(paths);
  // As if it were one file already.
  const torch::Checkpoint checkpoint = torch::read_legacy(fragments.merged());
  SaveOptions save = options.save;
  save.format = choose_format(save.format, target);
  ConversionNotes notes;
  notes.fit(save, /*source_has_checksums=*/false);
  const bool whole = save.format == torch::kLegacyFormat && !options.select && !options.rename && !options.dtype &&
                     !save.dtype && save.max_shard_size == 0;
  Writer writer = whole ? write_object(fragments, checkpoint, target, std::move(save))
                        : write_tensors(fragments, checkpoint, target, options, std::move(save), notes);
  Stats stats = save_conversion(writer, paths, options.overwrite, [&fragments] { fragments.check_unchanged(); });
  return {std::move(stats), notes.take()};
}

std::vector<TensorInfo> fragmented_tensors(const std::vector<fs::path>& paths) {
  const Fragments fragments(paths);
  const torch::Checkpoint checkpoint = torch::read_legacy(fragments.merged());
  Layout layout = torch::make_layout(checkpoint, fragments.merged().path());
  layout.tensors.insert(layout.tensors.end(), layout.packed_tensors.begin(), layout.packed_tensors.end());
  return std::move(layout.tensors);
}

}  // namespace penstock
