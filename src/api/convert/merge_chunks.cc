// merge_chunks(): the chunks that ranks wrote of each tensor become whole tensors of one file, block by block.
#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "api/convert/box.h"
#include "api/convert/convert_source.h"
#include "api/convert/notes.h"
#include "api/convert/source_check.h"
#include "api/files/chunk_directory.h"
#include "api/files/reader_state.h"
#include "api/load/placement.h"
#include "api/load/range_reader.h"
#include "api/load/views.h"
#include "base/cast.h"
#include "base/error.h"
#include "format/checksums.h"
#include "penstock/side_by_side.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kByteBits = 8;

// Elements that are narrower than a byte are counted in pairs here, so that each takes a byte.
std::uint64_t chunk_width(DType dtype) {
  return std::max(dtype_bits(dtype) / kByteBits, 1u);
}

// As files of tensors count them.
Shape file_shape(const ChunkedTensor& tensor, Shape shape) {
  if (dtype_bits(tensor.dtype) < kByteBits && !shape.empty()) shape.back() *= 2;
  return shape;
}

// A checkpoint with its files open.
class ChunkFiles {
 public:
  ChunkFiles(const fs::path& directory, const fs::path& description, ChunkedCheckpoint checkpoint)
      : directory_(directory), description_(description), checkpoint_(std::move(checkpoint)) {
    std::vector<EmbeddedFile> embedded;
    for (const ChunkedTensor& tensor : checkpoint_.tensors) {
      for (const TensorChunk& chunk : tensor.chunks) {
        const auto [known, is_new] = numbers_.emplace(std::pair(chunk.file, chunk.stretch), embedded.size());
        if (is_new) embedded.push_back({directory / checkpoint_.files[chunk.file], chunk.stretch});
      }
    }
    if (embedded.empty()) throw_argument("{}: the checkpoint has no tensors", directory.native());
    reader_.emplace(open_side_by_side(embedded));
    for (const auto& file : state().files) readers_.push_back(std::make_shared<const RangeReader>(file));
    for (const TensorInfo& tensor : state().tensors) {
      // What lies in a stretch is alone there, and has whatever name.
      by_name_.emplace(tensor.name, &tensor);
      by_name_.emplace(tensor.name.substr(0, tensor.name.find('/') + 1), &tensor);
    }
  }

  const ChunkedCheckpoint& checkpoint() const { return checkpoint_; }
  const Reader::State& state() const { return ReaderAccess::state(*reader_); }
  const std::vector<std::shared_ptr<const RangeReader>>& readers() const { return readers_; }

  // Where a chunk's bytes are. Throws Error(kFormat) where its file says something else of it.
  const TensorInfo& find(const ChunkedTensor& tensor, const TensorChunk& chunk) const {
    const std::string number = std::to_string(numbers_.at(std::pair(chunk.file, chunk.stretch)));
    const auto found = by_name_.find(number + "/" + (chunk.stretch ? "" : tensor.name));
    const fs::path path = directory_ / checkpoint_.files[chunk.file];
    if (found == by_name_.end()) throw_format(path.native(), "has no tensor {}", in_quotes(tensor.name));
    const TensorInfo& info = *found->second;
    if (info.dtype != tensor.dtype || info.shape != file_shape(tensor, chunk.shape)) {
      throw_format(path.native(), "tensor {} is {} {}, and {} {} by {}", in_quotes(tensor.name), dtype_name(info.dtype),
                   shape_text(info.shape), dtype_name(tensor.dtype), shape_text(file_shape(tensor, chunk.shape)),
                   description_.filename().native());
    }
    return info;
  }

  std::vector<fs::path> paths() const {
    std::vector<fs::path> paths{description_};
    for (const FileInfo& file : state().infos) paths.push_back(file.path);
    return paths;
  }

 private:
  const fs::path& directory_;
  const fs::path& description_;
  const ChunkedCheckpoint checkpoint_;
  std::map<std::pair<std::uint32_t, std::optional<std::pair<std::uint64_t, std::uint64_t>>>, std::size_t> numbers_;
  std::optional<Reader> reader_;
  std::vector<std::shared_ptr<const RangeReader>> readers_;
  std::map<std::string, const TensorInfo*, std::less<>> by_name_;
};

// Bytes of a chunk, row-major.
using ReadChunk =
    std::function<void(std::uint64_t offset, std::uint64_t nbytes, const std::function<void(const std::byte*)>& use)>;

ReadChunk read_stretch(const ChunkFiles& files, const TensorInfo& info, const std::shared_ptr<SourceCheck>& check) {
  return
      [&info, reader = files.readers()[info.file], check](std::uint64_t offset, std::uint64_t nbytes, const auto& use) {
        reader->read(info.offset + offset, nbytes, [&](const std::byte* data) {
          if (check) check->look(info, info.offset + offset, nbytes, data);
          use(data);
        });
      };
}

// One that torch saved with its elements apart.
ReadChunk read_view(const ChunkFiles& files, const TensorInfo& info) {
  const FillFunction fill =
      make_view_fill([&state = files.state(), &info] { return load_view(state, info, LoadOptions{}); });
  return [fill](std::uint64_t offset, std::uint64_t nbytes, const auto& use) {
    std::vector<std::byte> bytes(nbytes);
    fill(offset, bytes);
    use(bytes.data());
  };
}

struct PlacedChunk {
  Box box;
  ReadChunk read;
};

// Joins the chunks of a tensor: of each that the wanted elements lie in, one stretch is read.
FillFunction make_joined_fill(std::vector<PlacedChunk> chunks, DType from, DType to) {
  const std::uint64_t from_width = chunk_width(from);
  const std::uint64_t to_width = chunk_width(to);
  return [=, chunks = std::make_shared<const std::vector<PlacedChunk>>(std::move(chunks))](std::uint64_t offset,
                                                                                           std::span<std::byte> bytes) {
    const std::uint64_t first = offset / to_width;
    const std::uint64_t end = first + bytes.size() / to_width;
    for (const PlacedChunk& chunk : *chunks) {
      const std::uint64_t begin = chunk.box.count_before(first);
      const std::uint64_t behind = chunk.box.count_before(end);
      if (begin == behind) continue;
      chunk.read(begin * from_width, (behind - begin) * from_width, [&](const std::byte* data) {
        chunk.box.for_each_run(begin, behind, [&](std::uint64_t in_box, std::uint64_t in_tensor, std::uint64_t count) {
          const std::byte* const source = data + (in_box - begin) * from_width;
          std::byte* const target = bytes.data() + (in_tensor - first) * to_width;
          if (from == to) {
            std::memcpy(target, source, count * from_width);
          } else {
            cast_elements(from, source, to, target, count);
          }
        });
      });
    }
  };
}

TensorInfo describe(const ChunkedTensor& tensor, const fs::path& description) {
  TensorInfo info;
  info.name = tensor.name;
  info.dtype = tensor.dtype;
  info.shape = file_shape(tensor, tensor.shape);
  info.nbytes = tensor_nbytes(info.dtype, info.shape, description.native(), info.name);
  return info;
}

}  // namespace

ConvertStats merge_chunks(const fs::path& description, const fs::path& target, const ConvertOptions& options) {
  const fs::path directory = description.parent_path();
  const ChunkFiles files(directory, description, read_chunks(description));
  struct Wanted {
    const ChunkedTensor* tensor;
    TensorInfo info;
    std::vector<const TensorInfo*> chunks;  // those that are not empty
  };
  std::vector<Wanted> wanted;
  for (const ChunkedTensor& tensor : files.checkpoint().tensors) {
    TensorInfo info = describe(tensor, description);
    if (options.select && !options.select(info)) continue;
    wanted.push_back({&tensor, std::move(info), {}});
    for (const TensorChunk& chunk : tensor.chunks) wanted.back().chunks.push_back(&files.find(tensor, chunk));
  }
  if (wanted.empty()) throw_argument("{}: no tensor of it was selected", directory.native());

  ConversionNotes notes;
  for (const std::string& name : files.checkpoint().objects) notes.see_value(name);
  SaveOptions save = options.save;
  save.format = format_for_save(save.format, target.native());
  if (options.keep_metadata && has_metadata(save.format)) save.metadata.emplace("format", "pt");
  notes.fit(save, files.state().metadata.contains(std::string(kChecksumKey)));

  std::shared_ptr<SourceCheck> check;
  if (options.verify != Verify::kOff) {
    std::vector<const TensorInfo*> sources;
    for (const Wanted& each : wanted) sources.insert(sources.end(), each.chunks.begin(), each.chunks.end());
    std::sort(sources.begin(), sources.end());  // the reader's order
    sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
    check = std::make_shared<SourceCheck>(files.state(), options.verify, std::move(sources), files.readers());
  }
  Writer writer(target, std::move(save));
  TargetNames names(options, target);
  for (const Wanted& each : wanted) {
    std::vector<PlacedChunk> chunks;
    for (std::size_t i = 0; i < each.chunks.size(); ++i) {
      const TensorChunk& chunk = each.tensor->chunks[i];
      const TensorInfo& info = *each.chunks[i];
      if (info.nbytes == 0) continue;
      chunks.push_back({Box(each.tensor->shape, chunk.offsets, chunk.shape),
                        info.byte_strides.empty() ? read_stretch(files, info, check) : read_view(files, info)});
    }
    const DType dtype = loaded_dtype(each.info, options.dtype);
    writer.add(names.take(each.info.name), dtype, each.info.shape,
               make_joined_fill(std::move(chunks), each.info.dtype, dtype));
  }
  Stats stats = save_conversion(writer, files.paths(), options.overwrite, [&] {
    if (check) check->finish();
    for (const auto& file : files.state().files) file->check_unchanged();
  });
  return {std::move(stats), notes.take()};
}

std::vector<TensorInfo> chunked_tensors(const fs::path& description) {
  std::vector<TensorInfo> tensors;
  for (const ChunkedTensor& tensor : read_chunks(description).tensors) {
    tensors.push_back(describe(tensor, description));
  }
  return tensors;
}

}  // namespace penstock
