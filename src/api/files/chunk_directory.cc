#include "api/files/chunk_directory.h"

#include <system_error>

#include "api/files/file_bytes.h"
#include "base/error.h"
#include "format/detect.h"
#include "format/shards.h"

namespace penstock {

namespace fs = std::filesystem;

std::optional<fs::path> find_chunks(std::span<const fs::path> paths) {
  std::error_code ignored;
  if (paths.size() != 1 || !fs::is_directory(paths.front(), ignored)) return {};
  for (const std::string_view name : {kChunksFile, kTorchChunksFile}) {
    const fs::path path = paths.front() / name;
    if (fs::is_regular_file(path, ignored)) return path;
  }
  return {};
}

ChunkedCheckpoint read_chunks(const fs::path& description) {
  const File file = File::open(description);
  const FileBytes bytes(file);
  return description.filename() == kChunksFile ? parse_chunks(bytes) : parse_torch_chunks(bytes);
}

std::shared_ptr<Reader::State> open_chunk_files(const fs::path& description) {
  const fs::path directory = description.parent_path();
  if (description.filename() != kChunksFile) {
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{}: a directory of torch's FileSystemWriter, which has no checksums; `penstock convert` "
                            "makes a file of it",
                            directory.native()));
  }
  const auto opened = std::make_shared<const File>(File::open(description));
  const ChunkedCheckpoint checkpoint = parse_chunks(FileBytes(*opened));
  auto state = std::make_shared<Reader::State>();
  for (const std::string& name : checkpoint.files) {
    auto file = std::make_shared<const File>(File::open(directory / name));
    Layout layout = parse_layout(FileBytes(*file));
    state->add(directory / name, std::move(file), std::move(layout));
  }
  state->indexes.push_back(opened);
  const fs::path index = directory / index_file_name("model.safetensors");
  std::error_code ignored;
  if (fs::is_regular_file(index, ignored)) state->indexes.push_back(std::make_shared<const File>(File::open(index)));
  return state;
}

}  // namespace penstock
