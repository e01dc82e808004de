// make_chunks(): a directory of torch.distributed.checkpoint out of any checkpoint: ordinary safetensors files, an
// index, and dcp.json, by which penstock.dcp reads it. Every tensor is one chunk.
#include <algorithm>
#include <cerrno>
#include <map>
#include <string>
#include <system_error>

#include "api/convert/convert_source.h"
#include "api/convert/new_directory.h"
#include "api/files/reader_state.h"
#include "base/error.h"
#include "format/chunks.h"
#include "format/shards.h"
#include "io/new_file.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFileName = "model.safetensors";

// What is in a directory of ours, or of torch's, and may be replaced.
bool is_of_checkpoint(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().native();
  std::error_code ignored;
  if (entry.symlink_status(ignored).type() != fs::file_type::regular) return false;
  for (const std::string_view suffix : {".safetensors", ".pickles", ".distcp", ".index.json", ".seal.json"}) {
    if (name.size() > suffix.size() && name.ends_with(suffix)) return true;
  }
  return name == kChunksFile || name == kTorchChunksFile;
}

void check_replaceable(std::span<const fs::path> sources, const fs::path& target, bool overwrite) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(target, error))) return;
  if (!overwrite) {
    throw Error(ErrorKind::kArgument,
                fmt::format("{}: exists already; overwrite=True (--force) replaces it", target.native()), EEXIST);
  }
  if (!fs::is_directory(fs::symlink_status(target, error))) throw_argument("{}: is no directory", target.native());
  for (const fs::path& source : sources) {
    if (!fs::equivalent(source, target, error) && !fs::equivalent(source.parent_path(), target, error)) continue;
    throw_argument("{}: has files of the source; a conversion never replaces what it reads", target.native());
  }
  for (fs::directory_iterator it(target, error), end; !error && it != end; it.increment(error)) {
    if (is_of_checkpoint(*it)) continue;
    throw_argument("{}: is not replaced by a checkpoint, because it holds {}, which is none", target.native(),
                   in_quotes(it->path().filename().native()));
  }
  if (error) throw_errno(target.native(), "cannot list the directory", error.value());
}

void write_text(const fs::path& path, const std::string& text, bool durable) {
  NewFile file = NewFile::create(path);
  file.write(0, text.data(), text.size());
  file.finish(text.size(), durable);
  file.publish();
  if (durable) file.sync_name();
}

ChunkedTensor as_one_chunk(const TensorInfo& info) {
  ChunkedTensor tensor{info.name, info.dtype, info.shape, {}};
  // torch counts elements of four bits in pairs.
  if (dtype_bits(info.dtype) < 8 && !tensor.shape.empty()) tensor.shape.back() /= 2;
  tensor.chunks.push_back({info.file, {}, Shape(tensor.shape.size(), 0), tensor.shape});
  return tensor;
}

// Of files that are all there.
void describe(const fs::path& directory, bool durable) {
  const fs::path index_path = directory / index_file_name(kFileName);
  const bool is_set = fs::exists(index_path);
  const Reader reader(is_set ? index_path : directory / kFileName);
  ChunkedCheckpoint checkpoint;
  for (const FileInfo& file : reader.files()) checkpoint.files.push_back(file.path.filename().native());
  ShardIndex index;
  index.files = checkpoint.files;
  std::uint64_t total = 0;
  for (const TensorInfo& info : reader.tensors()) {
    checkpoint.tensors.push_back(as_one_chunk(info));
    index.weight_map.emplace(info.name, info.file);
    total += info.nbytes;
  }
  if (!is_set) write_text(index_path, encode_shard_index(index, total), durable);
  write_text(directory / kChunksFile, encode_chunks(checkpoint), durable);
}

}  // namespace

ConvertStats make_chunks(std::span<const fs::path> sources, const fs::path& target, const ConvertOptions& options) {
  const fs::path path = target.has_filename() ? target : target.parent_path();
  for (const TensorInfo& tensor : source_tensors(sources)) {
    if (!dtype_torch_name(options.dtype.value_or(tensor.dtype)).empty()) continue;
    throw Error(ErrorKind::kUnsupported, fmt::format("{}: tensor {} is {}, which torch does not have", path.native(),
                                                     in_quotes(tensor.name), dtype_name(tensor.dtype)));
  }
  check_replaceable(sources, path, options.overwrite);
  ConvertOptions inner = options;
  inner.save.format = "safetensors";
  inner.save.checksums = true;
  if (inner.keep_metadata) inner.save.metadata.emplace("format", "pt");
  NewDirectory directory(path);
  ConvertStats stats = convert(sources, directory.path() / kFileName, inner);
  describe(directory.path(), options.save.durable);
  check_replaceable(sources, path, options.overwrite);
  directory.commit(options.overwrite, options.save.durable);
  return stats;
}

}  // namespace penstock
