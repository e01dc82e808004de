// Layout: what every format's parser yields and every encoder starts from.
//
// A format says where bytes are, never how they are read: parsers see a file only through ByteSource.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/tensor.h"

namespace penstock {

// Random access to the bytes of one file, for headers and footers.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const = 0;
  virtual const std::string& path() const = 0;  // for messages
  // Fills all of `bytes` from `offset`; throws Error when it can't.
  virtual void read(std::uint64_t offset, std::span<std::byte> bytes) const = 0;
};

// Bytes that a file does not hold as they are: compressed, or inside a pickle. Unpacked, such parts lie one after the
// other as in a file of their own, and that is where the offsets of Layout::packed_tensors count from.
struct PackedBytes {
  std::string name;          // for messages: record "archive/data/0"
  std::uint64_t offset = 0;  // when unpacked
  std::uint64_t nbytes = 0;
  std::uint32_t crc32 = 0;  // 0: none is known
  // Passes the bytes on in order; the same each time. `source` is the file that was parsed.
  using Take = std::function<void(std::span<const std::byte>)>;
  std::function<void(const ByteSource& source, const Take& take)> unpack;
};

// One file's tensors, in the order of their offsets. TensorInfo::file is 0; whoever joins files sets it.
struct Layout {
  std::string format;
  std::vector<TensorInfo> tensors;
  Metadata metadata;
  std::vector<TensorInfo> packed_tensors = {};
  std::vector<PackedBytes> packed = {};  // by offset
  std::vector<OpaqueValue> opaque = {};
};

// By offset, then by size (an empty tensor before the one that starts where it lies), then by name: the order that
// checksums are stored in.
void sort_by_offset(std::vector<TensorInfo>& tensors);

// A tensor that is going to be written.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kU8;
  Shape shape;
  std::uint64_t nbytes = 0;
};

// Bytes that a format puts between tensors.
struct Literal {
  std::uint64_t offset = 0;
  std::vector<std::byte> bytes;
};

// A laid-out file: `prefix`, then each tensor's bytes at its offset, then `suffix`, between them literals and zeros.
struct FilePlan {
  std::vector<std::byte> prefix;       // starts at offset 0
  std::vector<std::byte> suffix;       // ends with the file
  std::vector<Literal> literals;       // by offset
  std::vector<std::uint32_t> order;    // indices into the specs, as sort_by_offset has it
  std::vector<std::uint64_t> offsets;  // of each spec (in the order they were given)
  std::uint64_t file_size = 0;
};

// The bytes that `shape` elements of `dtype` take. Throws Error(kFormat) naming `path` and `name` when a dimension is
// negative, the product overflows, or the bits don't fill whole bytes.
std::uint64_t tensor_nbytes(DType dtype, std::span<const std::int64_t> shape, std::string_view path,
                            std::string_view name);

// The same without throwing: on failure `problem` says why ("takes more than 2^64 bits"), after "F32 [3, 4] ".
struct NbytesResult {
  std::uint64_t nbytes = 0;
  const char* problem = nullptr;
};
NbytesResult try_tensor_nbytes(DType dtype, std::span<const std::int64_t> shape) noexcept;

// "[3, 4]"
std::string shape_text(std::span<const std::int64_t> shape);

// The places of two equal names, the lower one first; nothing when all differ. O(n log n) whatever the names.
std::optional<std::pair<std::size_t, std::size_t>> find_duplicate(std::span<const std::string_view> names);

}  // namespace penstock
