// Any bytes as a FlashPack file, and any bytes as the footer of one whose payload has the size that the footer asks
// for.
//
// What parses must be consistent: valid JSON by another parser's judgement, blocks within the payload, tensors within
// their blocks without overlap under names that differ, and the same tensors again after encoding and parsing. What
// does not parse must be refused by an Error of one line.
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "check.h"
#include "format/detect.h"
#include "format/flashpack.h"
#include "format/flashpack_footer.h"
#include "format/flashpack_tail.h"
#include "format/memory_source.h"

namespace penstock {
namespace {

using flashpack::Block;
using flashpack::Footer;

// `payload` zeros followed by `suffix`, without the memory for the zeros.
class SparseSource final : public ByteSource {
 public:
  SparseSource(std::uint64_t payload, std::string_view suffix) : payload_(payload), suffix_(suffix) {}

  std::uint64_t size() const override { return payload_ + suffix_.size(); }
  const std::string& path() const override { return path_; }
  void read(std::uint64_t offset, std::span<std::byte> bytes) const override {
    FUZZ_CHECK(offset <= size() && bytes.size() <= size() - offset);
    // Headers are all that a parser reads: of the payload at most a few bytes to know a format by.
    FUZZ_CHECK(bytes.size() <= suffix_.size() + 64);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = offset + i < payload_ ? std::byte{0} : static_cast<std::byte>(suffix_[offset + i - payload_]);
    }
  }

 private:
  std::uint64_t payload_;
  std::string_view suffix_;
  std::string path_ = "f";
};

std::string with_tail(std::string footer) {
  const std::uint64_t length = footer.size();
  for (int shift = 0; shift < 64; shift += 8) footer += static_cast<char>(length >> shift);
  footer += flashpack::kMagic;
  return footer;
}

void check_json(std::string_view text) {
  simdjson::dom::parser parser;
  simdjson::dom::element element;
  FUZZ_CHECK(parser.parse(text.data(), text.size()).get(element) == simdjson::SUCCESS);
  FUZZ_CHECK(element.is_object());
}

bool holds(const Block& block, const TensorInfo& tensor) {
  return block.dtype == tensor.dtype && tensor.offset >= block.offset && tensor.nbytes <= block.nbytes &&
         tensor.offset - block.offset <= block.nbytes - tensor.nbytes;
}

void check_consistent(const Footer& footer, std::uint64_t payload) {
  for (const Block& block : footer.blocks) {
    FUZZ_CHECK(block.offset <= payload && block.nbytes <= payload - block.offset);
  }
  std::set<std::string_view> names;
  for (const TensorInfo& tensor : footer.tensors) {
    FUZZ_CHECK(tensor.nbytes == tensor_nbytes(tensor.dtype, tensor.shape, "f", tensor.name));
    FUZZ_CHECK(names.insert(tensor.name).second);
    FUZZ_CHECK(std::any_of(footer.blocks.begin(), footer.blocks.end(),
                           [&](const Block& block) { return holds(block, tensor); }));
  }
  std::vector<TensorInfo> tensors = footer.tensors;
  sort_by_offset(tensors);
  std::uint64_t next = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.nbytes == 0) continue;
    FUZZ_CHECK(tensor.offset >= next);
    next = tensor.offset + tensor.nbytes;
  }
}

bool has(const Footer& footer, const TensorInfo& wanted) {
  return std::any_of(footer.tensors.begin(), footer.tensors.end(), [&](const TensorInfo& tensor) {
    return tensor.name == wanted.name && tensor.dtype == wanted.dtype && tensor.shape == wanted.shape &&
           tensor.nbytes == wanted.nbytes;
  });
}

void check_round_trip(const Footer& footer, const FlashPackOptions& options) {
  std::vector<TensorSpec> specs;
  for (const TensorInfo& tensor : footer.tensors)
    specs.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.nbytes});
  FilePlan plan;
  try {
    plan = flashpack::encode(specs, footer.metadata, options);
  } catch (const Error& error) {
    // A file without any element can be read and not written; one near 2^64 bytes may not fit when it is aligned.
    const std::string_view message = error.what();
    FUZZ_CHECK(message.find("2^64") != std::string_view::npos || message.find("nothing") != std::string_view::npos);
    return;
  }
  const std::string suffix(reinterpret_cast<const char*>(plan.suffix.data()), plan.suffix.size());
  const std::uint64_t payload = plan.file_size - suffix.size();
  const Footer again = flashpack::parse_footer(SparseSource(payload, suffix));
  check_consistent(again, payload);
  FUZZ_CHECK(again.metadata == footer.metadata);
  FUZZ_CHECK(again.tensors.size() == footer.tensors.size());
  for (const TensorInfo& tensor : footer.tensors) FUZZ_CHECK(has(again, tensor));
}

void check_file(const ByteSource& source) {
  try {
    const Footer footer = flashpack::parse_footer(source);
    check_json(footer.text);
    check_consistent(footer, source.size() - footer.text.size() - flashpack::kTailBytes);
    check_round_trip(footer, {});
    check_round_trip(footer, {.align_bytes = 7, .keep_order = true, .align_large = true});
    FUZZ_CHECK(parse_layout(source).tensors.size() == footer.tensors.size());
    FUZZ_CHECK(flashpack::parse_blocks(source).tensors.size() == footer.blocks.size());
  } catch (const Error& error) {
    fuzz::check_message(error);
  }
}

// As many bytes as the footer says that the payload has; 0 when it can't be read.
std::uint64_t payload_size_of(const std::string& text) {
  try {
    const flashpack::FooterRecord record = flashpack::parse_footer_text(text, 0, "f");
    if (record.payload_bytes) return *record.payload_bytes;
    std::uint64_t size = 0;
    if (record.version == 3) {
      if (__builtin_mul_overflow(*record.total_elements, dtype_bits(*record.target_dtype) / 8, &size)) return 0;
    }
    for (const flashpack::BlockRecord& block : record.blocks) {
      std::uint64_t end = 0;
      if (!__builtin_add_overflow(block.offset_bytes, block.length_bytes, &end)) size = std::max(size, end);
    }
    return size;
  } catch (const Error& error) {
    fuzz::check_message(error);
    return 0;
  }
}

void check_as_footer(const std::string& text) {
  const std::string suffix = with_tail(text);
  const std::uint64_t payload = payload_size_of(text);
  if (payload > ~std::uint64_t{0} - suffix.size()) return;
  check_file(SparseSource(payload, suffix));
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  penstock::check_file(penstock::MemorySource(input, "f"));
  penstock::check_as_footer(input);
  return 0;
}
