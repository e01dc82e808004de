#include "penstock/side_by_side.h"

#include <map>

#include "api/files/file_bytes.h"
#include "api/files/reader_state.h"
#include "base/error.h"
#include "format/detect.h"

namespace penstock {
namespace {

// A stretch of a file as if it were one.
class EmbeddedBytes final : public ByteSource {
 public:
  EmbeddedBytes(const File& file, std::uint64_t offset, std::uint64_t size)
      : file_(file), offset_(offset), size_(size) {
    if (offset <= file.size() && size <= file.size() - offset) return;
    throw_format(file.path(), "{} bytes at offset {} are past its end: the file has {}", size, offset, file.size());
  }
  std::uint64_t size() const override { return size_; }
  const std::string& path() const override { return file_.path(); }
  void read(std::uint64_t offset, std::span<std::byte> bytes) const override {
    if (offset > size_ || bytes.size() > size_ - offset) {
      throw_format(file_.path(), "{} bytes at offset {} are past the end of what lies at {}", bytes.size(), offset,
                   offset_);
    }
    file_.read(offset_ + offset, bytes.data(), bytes.size());
  }

 private:
  const File& file_;
  const std::uint64_t offset_;
  const std::uint64_t size_;
};

// Adds a checkpoint's tensors to those of the file that it lies in.
void add_embedded(const File& file, const EmbeddedFile& embedded, std::size_t number, Layout& layout) {
  const auto [offset, size] = *embedded.stretch;
  Layout parsed = parse_layout(EmbeddedBytes(file, offset, size));
  if (!parsed.packed.empty()) {
    throw Error(ErrorKind::kUnsupported, fmt::format("{}: what lies at {} is compressed", file.path(), offset));
  }
  for (TensorInfo& tensor : parsed.tensors) {
    tensor.offset += offset;
    tensor.name = fmt::format("{}/{}", number, tensor.name);
    layout.tensors.push_back(std::move(tensor));
  }
  layout.opaque.insert(layout.opaque.end(), parsed.opaque.begin(), parsed.opaque.end());
  // Its own name for the format: what is said of whole files, such as where their checksums are, is not true of these.
  layout.format = parsed.format + " in parts";
}

Layout parse_whole(const File& file, std::size_t number) {
  Layout layout = parse_layout(FileBytes(file));
  for (std::vector<TensorInfo>* tensors : {&layout.tensors, &layout.packed_tensors}) {
    for (TensorInfo& tensor : *tensors) tensor.name = fmt::format("{}/{}", number, tensor.name);
  }
  return layout;
}

}  // namespace

Reader open_side_by_side(std::span<const EmbeddedFile> files) {
  if (files.empty()) throw_argument("no file was named");
  std::map<std::filesystem::path, std::vector<std::size_t>> numbers;
  std::vector<std::filesystem::path> order;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto path = files[i].path.lexically_normal();
    auto& of_path = numbers[path];
    if (of_path.empty()) order.push_back(path);
    if (!of_path.empty() && !(files[i].stretch && files[of_path.front()].stretch)) {
      throw_argument("{}: listed twice", path.native());
    }
    of_path.push_back(i);
  }
  auto state = std::make_shared<Reader::State>();
  for (const std::filesystem::path& path : order) {
    auto file = std::make_shared<const File>(File::open(path));
    const std::vector<std::size_t>& of_path = numbers[path];
    Layout layout;
    if (!files[of_path.front()].stretch) {
      layout = parse_whole(*file, of_path.front());
    } else {
      for (const std::size_t number : of_path) add_embedded(*file, files[number], number, layout);
      sort_by_offset(layout.tensors);
    }
    state->add(path, std::move(file), std::move(layout));
  }
  return ReaderAccess::make(std::move(state));
}

}  // namespace penstock
