// Any bytes as a safetensors file, and any bytes as the header of one whose data has the size that the header asks for.
//
// What parses must be consistent: valid JSON by another parser's judgement, tensors that cover the file without a hole
// under names that differ, and the same tensors again after encoding and parsing. What does not parse must be refused
// by an Error of one line.
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string>

#include "check.h"
#include "format/detect.h"
#include "format/memory_source.h"
#include "format/safetensors.h"
#include "format/safetensors_header.h"

namespace penstock {
namespace {

// A header followed by as many zeros as `size` says, without the memory for them.
class SparseSource final : public ByteSource {
 public:
  SparseSource(std::string_view prefix, std::uint64_t size) : prefix_(prefix), size_(size) {}

  std::uint64_t size() const override { return size_; }
  const std::string& path() const override { return path_; }
  void read(std::uint64_t offset, std::span<std::byte> bytes) const override {
    FUZZ_CHECK(offset <= size_ && bytes.size() <= size_ - offset);
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    if (offset >= prefix_.size()) return;
    const std::string_view part = prefix_.substr(offset, bytes.size());
    std::memcpy(bytes.data(), part.data(), part.size());
  }

 private:
  std::string_view prefix_;
  std::uint64_t size_;
  std::string path_ = "f";
};

std::string u64le(std::uint64_t value) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

void check_json(std::string_view text) {
  simdjson::dom::parser parser;
  simdjson::dom::element element;
  FUZZ_CHECK(parser.parse(text.data(), text.size()).get(element) == simdjson::SUCCESS);
  FUZZ_CHECK(element.is_object());
}

void check_contiguous(const Layout& layout, std::uint64_t file_size) {
  std::uint64_t next = layout.tensors.empty() ? file_size : layout.tensors.front().offset;
  std::set<std::string_view> names;
  for (const TensorInfo& tensor : layout.tensors) {
    FUZZ_CHECK(tensor.offset == next);
    FUZZ_CHECK(tensor.nbytes == tensor_nbytes(tensor.dtype, tensor.shape, "f", tensor.name));
    FUZZ_CHECK(tensor.nbytes <= file_size - next);
    FUZZ_CHECK(names.insert(tensor.name).second);
    next += tensor.nbytes;
  }
  FUZZ_CHECK(next == file_size);
}

bool has(const Layout& layout, const TensorInfo& wanted) {
  return std::any_of(layout.tensors.begin(), layout.tensors.end(), [&](const TensorInfo& tensor) {
    return tensor.name == wanted.name && tensor.dtype == wanted.dtype && tensor.shape == wanted.shape &&
           tensor.nbytes == wanted.nbytes;
  });
}

void check_round_trip(const Layout& layout) {
  std::vector<TensorSpec> specs;
  for (const TensorInfo& tensor : layout.tensors)
    specs.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.nbytes});
  FilePlan plan;
  try {
    plan = safetensors::encode(specs, layout.metadata);
  } catch (const Error& error) {
    // Only a file near 2^64 bytes may not fit any more, when its header grows.
    FUZZ_CHECK(std::string_view(error.what()).find("2^64") != std::string_view::npos);
    return;
  }
  const std::string prefix(reinterpret_cast<const char*>(plan.prefix.data()), plan.prefix.size());
  const Layout again = safetensors::parse(SparseSource(prefix, plan.file_size));
  FUZZ_CHECK(again.metadata == layout.metadata);
  FUZZ_CHECK(again.tensors.size() == layout.tensors.size());
  for (const TensorInfo& tensor : layout.tensors) FUZZ_CHECK(has(again, tensor));
}

void check_file(const ByteSource& source, std::string_view header) {
  try {
    const Layout layout = parse_layout(source);
    if (layout.format != "safetensors") return;  // fuzz_flashpack's
    check_json(header);
    check_contiguous(layout, source.size());
    check_round_trip(layout);
  } catch (const Error& error) {
    fuzz::check_message(error);
  }
}

std::string_view header_of(std::string_view file) {
  std::uint64_t length = 0;
  if (file.size() < 8) return {};
  for (std::size_t i = 8; i-- > 0;) length = (length << 8) | static_cast<unsigned char>(file[i]);
  return file.substr(8, length);
}

// Where the last tensor of a header ends; nothing when it can't be read.
std::optional<std::uint64_t> data_size_of(const std::string& header) {
  try {
    std::uint64_t size = 0;
    for (const TensorInfo& tensor : safetensors::parse_header(header, "f").tensors) {
      size = std::max(size, tensor.offset + tensor.nbytes);
    }
    return size;
  } catch (const Error& error) {
    fuzz::check_message(error);
    return std::nullopt;
  }
}

void check_as_header(const std::string& header) {
  if (header.size() < 2) return;
  const std::string prefix = u64le(header.size()) + header;
  const std::optional<std::uint64_t> data_size = data_size_of(header);
  std::uint64_t size = 0;
  if (!data_size || __builtin_add_overflow(*data_size, prefix.size(), &size)) return;
  check_file(SparseSource(prefix, size), header);
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  // Most inputs begin with no length that would do, and refusing them over and over takes half of the time.
  const bool may_be_whole = input.size() < 16 || static_cast<unsigned char>(input[7]) == 0;
  if (may_be_whole) penstock::check_file(penstock::MemorySource(input, "f"), penstock::header_of(input));
  penstock::check_as_header(input);
  return 0;
}
