// Reading: the end of the file, the footer, and whether blocks and tensors fit the payload.
#include "format/flashpack.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/bytes.h"
#include "base/error.h"
#include "format/flashpack_footer.h"
#include "format/flashpack_tail.h"

namespace penstock::flashpack {
namespace {

constexpr std::uint64_t kMaxFooterLength = 512 * kMiB;

// The JSON's place in the file.
ByteRange find_footer(const ByteSource& source) {
  const std::uint64_t size = source.size();
  if (size < kTailBytes) {
    throw_format(source.path(), "File too small to contain footer: {} bytes, expected at least {}", size, kTailBytes);
  }
  std::array<std::byte, kTailBytes> tail;
  source.read(size - kTailBytes, tail);
  if (!std::equal(kMagic.begin(), kMagic.end(), reinterpret_cast<const char*>(tail.data()) + kLengthBytes)) {
    throw_format(source.path(), "byte {}: Bad magic: the file does not end with the mark of a FlashPack file",
                 size - kMagic.size());
  }
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) length = (length << 8) | std::to_integer<std::uint64_t>(tail[i]);
  if (length > size - kTailBytes) {
    throw_format(source.path(), "byte {}: Corrupt footer length: it is {}, but only {} bytes come before it",
                 size - kTailBytes, length, size - kTailBytes);
  }
  if (length > kMaxFooterLength) {
    throw_format(source.path(), "byte {}: Corrupt footer length: it is {}, more than the limit of {}",
                 size - kTailBytes, length, kMaxFooterLength);
  }
  return {size - kTailBytes - length, size - kTailBytes};
}

std::string read_footer(const ByteSource& source, const ByteRange& place) {
  std::byte first{};
  if (place.size() > 0) source.read(place.begin, {&first, 1});
  if (first != std::byte{'{'}) throw_format(source.path(), "byte {}: the footer must start with '{{'", place.begin);
  std::string text(place.size(), '\0');
  source.read(place.begin, std::as_writable_bytes(std::span(text)));
  return text;
}

class Checker {
 public:
  Checker(const FooterRecord& record, std::uint64_t payload, std::string_view path)
      : record_(record), payload_(payload), path_(path) {}

  std::vector<Block> check_blocks() const {
    std::vector<Block> blocks;
    if (record_.payload_bytes && *record_.payload_bytes != payload_) {
      throw_format(path_, "the footer says that the payload has {} bytes, but it has {}", *record_.payload_bytes,
                   payload_);
    }
    if (record_.version == 3) {
      const std::uint64_t nbytes = bytes_of(*record_.target_dtype, *record_.total_elements, "total_elems");
      if (nbytes != payload_) {
        throw_format(path_, "total_elems {} of {} take {} bytes, but the payload has {}", *record_.total_elements,
                     dtype_torch_name(*record_.target_dtype), nbytes, payload_);
      }
      blocks.push_back({*record_.target_dtype, 0, nbytes});
      return blocks;
    }
    std::uint64_t elements = 0;
    for (std::size_t i = 0; i < record_.blocks.size(); ++i) {
      blocks.push_back(check_block(i));
      elements += record_.blocks[i].length_elements;  // each is bounded by the payload
    }
    if (record_.total_elements && *record_.total_elements != elements) {
      throw_format(path_, "total_elems is {}, but the macroblocks have {}", *record_.total_elements, elements);
    }
    refuse_overlapping_blocks(blocks);
    return blocks;
  }

  TensorInfo check_tensor(const TensorRecord& tensor, std::span<const Block> blocks) const {
    if (tensor.block >= blocks.size()) {
      throw_format(path_, "tensor {}: Index entry references macroblock {}, but only {} exist", in_quotes(tensor.name),
                   tensor.block, blocks.size());
    }
    const Block& block = blocks[tensor.block];
    const std::uint64_t width = dtype_bits(block.dtype) / 8;
    const std::uint64_t nbytes = tensor_nbytes(block.dtype, tensor.shape, path_, tensor.name);
    if (nbytes / width != tensor.length) {
      throw_format(path_, "tensor {}: its length is {}, but {} has {} elements", in_quotes(tensor.name), tensor.length,
                   shape_text(tensor.shape), nbytes / width);
    }
    const std::uint64_t available = block.nbytes / width;
    if (tensor.offset > available || tensor.length > available - tensor.offset) {
      throw_format(path_, "tensor {}: its {} elements at {} go beyond the {} of macroblock {}", in_quotes(tensor.name),
                   tensor.length, tensor.offset, available, tensor.block);
    }
    TensorInfo info;
    info.name = tensor.name;
    info.dtype = block.dtype;
    info.shape = tensor.shape;
    info.offset = block.offset + tensor.offset * width;
    info.nbytes = nbytes;
    return info;
  }

 private:
  std::uint64_t bytes_of(DType dtype, std::uint64_t elements, std::string_view what) const {
    const auto nbytes = checked_multiply(elements, dtype_bits(dtype) / 8);
    if (!nbytes) throw_format(path_, "{}: {} elements take more than 2^64 bytes", what, elements);
    return *nbytes;
  }

  Block check_block(std::size_t number) const {
    const BlockRecord& block = record_.blocks[number];
    const std::string what = fmt::format("macroblock {}", number);
    const std::uint64_t nbytes = bytes_of(block.dtype, block.length_elements, what);
    if (nbytes != block.length_bytes) {
      throw_format(path_, "{}: length_bytes is {}, but {} elements of {} take {}", what, block.length_bytes,
                   block.length_elements, dtype_torch_name(block.dtype), nbytes);
    }
    if (block.offset_bytes > payload_ || nbytes > payload_ - block.offset_bytes) {
      throw_format(path_, "{}: its {} bytes at {} go beyond the {} of the payload", what, nbytes, block.offset_bytes,
                   payload_);
    }
    return {block.dtype, block.offset_bytes, nbytes};
  }

  void refuse_overlapping_blocks(std::span<const Block> blocks) const {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].nbytes > 0) order.push_back(i);
    }
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(blocks[a].offset, blocks[a].nbytes) < std::pair(blocks[b].offset, blocks[b].nbytes);
    });
    for (std::size_t k = 1; k < order.size(); ++k) {
      const Block& before = blocks[order[k - 1]];
      if (before.offset + before.nbytes <= blocks[order[k]].offset) continue;
      throw_format(path_, "macroblocks {} and {} overlap", order[k - 1], order[k]);
    }
  }

  const FooterRecord& record_;
  std::uint64_t payload_;
  std::string_view path_;
};

void refuse_overlapping_tensors(std::span<const TensorInfo> tensors, std::string_view path) {
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto comes_before = [&](std::uint32_t a, std::uint32_t b) { return tensors[a].offset < tensors[b].offset; };
  if (!std::is_sorted(order.begin(), order.end(), comes_before)) std::sort(order.begin(), order.end(), comes_before);
  const TensorInfo* previous = nullptr;
  for (const std::uint32_t i : order) {
    const TensorInfo& tensor = tensors[i];
    if (tensor.nbytes == 0) continue;
    if (previous != nullptr && previous->offset + previous->nbytes > tensor.offset) {
      throw_format(path, "tensors {} and {} overlap", in_quotes(previous->name), in_quotes(tensor.name));
    }
    previous = &tensor;
  }
}

void refuse_duplicate_names(std::span<const TensorInfo> tensors, std::string_view path) {
  std::vector<std::string_view> names(tensors.size());
  std::transform(tensors.begin(), tensors.end(), names.begin(),
                 [](const TensorInfo& tensor) { return std::string_view(tensor.name); });
  if (const auto duplicate = find_duplicate(names)) {
    throw_format(path, "tensor {} appears twice in the index", in_quotes(names[duplicate->first]));
  }
}

}  // namespace

bool looks_like(const ByteSource& source) {
  if (source.size() < kTailBytes) return false;
  std::array<std::byte, kMagic.size()> mark;
  source.read(source.size() - mark.size(), mark);
  return std::equal(kMagic.begin(), kMagic.end(), reinterpret_cast<const char*>(mark.data()));
}

Footer parse_footer(const ByteSource& source) {
  const ByteRange place = find_footer(source);
  Footer footer;
  footer.text = read_footer(source, place);
  FooterRecord record = parse_footer_text(footer.text, place.begin, source.path());
  const Checker checker(record, place.begin, source.path());
  footer.version = record.version;
  footer.blocks = checker.check_blocks();
  footer.tensors.reserve(record.tensors.size());
  for (const TensorRecord& tensor : record.tensors) {
    footer.tensors.push_back(checker.check_tensor(tensor, footer.blocks));
  }
  refuse_duplicate_names(footer.tensors, source.path());
  refuse_overlapping_tensors(footer.tensors, source.path());
  footer.metadata = std::move(record.metadata);
  return footer;
}

Layout parse(const ByteSource& source) {
  Footer footer = parse_footer(source);
  Layout layout;
  layout.format = "flashpack";
  layout.tensors = std::move(footer.tensors);
  layout.metadata = std::move(footer.metadata);
  sort_by_offset(layout.tensors);
  return layout;
}

Layout parse_blocks(const ByteSource& source) {
  const Footer footer = parse_footer(source);
  Layout layout;
  layout.format = "flashpack";
  for (const Block& block : footer.blocks) {
    TensorInfo info;
    info.name = std::to_string(layout.tensors.size());
    info.dtype = block.dtype;
    info.offset = block.offset;
    info.nbytes = block.nbytes;
    info.shape = {static_cast<std::int64_t>(block.nbytes / (dtype_bits(block.dtype) / 8))};
    layout.tensors.push_back(std::move(info));
  }
  sort_by_offset(layout.tensors);
  return layout;
}

}  // namespace penstock::flashpack
