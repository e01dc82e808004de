// Loads that map: zero-copy, private, writable views of the page cache.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "api/loading.h"
#include "base/error.h"

namespace penstock {
namespace {

constexpr std::uint64_t kPage = 4096;

// A private mapping of part of a file; `skew` is where the first byte asked for is in it.
struct MappedRange {
  Mapping mapping;
  std::uint64_t skew = 0;
};

std::shared_ptr<MappedRange> map_range(const File& file, ByteRange range) {
  const std::uint64_t begin = align_down(range.begin, kPage);
  const std::uint64_t length = range.end - begin;
  auto mapped = std::make_shared<MappedRange>();
  mapped->skew = range.begin - begin;
  if (range.size() == 0) return mapped;
  void* data = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.fd(), static_cast<off_t>(begin));
  if (data == MAP_FAILED) throw_errno(file.path(), fmt::format("cannot map {} bytes at offset {}", length, begin), errno);
  mapped->mapping = Mapping(data, length);
  return mapped;
}

bool is_misaligned(const TensorInfo& tensor) { return !is_aligned(tensor.offset, dtype_alignment(tensor.dtype)); }

}  // namespace

bool should_map(const Selection& selection, const LoadOptions& options) {
  if (options.cache == CachePolicy::kMap) {
    if (options.dtype || options.verify) {
      throw_argument("cache policy mmap: a mapping can be neither converted (dtype) nor verified");
    }
    return true;
  }
  if (options.cache != CachePolicy::kAuto || options.dtype || options.verify || selection.nbytes == 0) return false;
  if (decide_landing(options.landing) != Landing::kAuto) return false;
  for (const FileSelection& selected : selection.files) {
    const File& file = *selected.file;
    const ByteRange hull = selected.hull();
    // Mapping a range for a few tensors of it would keep the gaps' pages in the address space only; that costs nothing.
    if (file.resident_bytes(hull) != hull.size() || !file.on_local_filesystem()) return false;
  }
  return true;
}

LoadResult map_selection(const Reader::State&, const Selection& selection, const LoadOptions& options) {
  const Stopwatch watch;
  LoadResult result;
  result.tensors.reserve(selection.count);
  for (const FileSelection& selected : selection.files) {
    selected.file->check_unchanged();
    const ByteRange hull = selected.hull();
    const auto mapped = map_range(*selected.file, hull);
    std::byte* base = mapped->mapping.data();
    for (const TensorInfo* tensor : selected.tensors) {
      const std::span<std::byte> bytes(base + (base != nullptr ? mapped->skew + (tensor->offset - hull.begin) : 0),
                                       static_cast<std::size_t>(tensor->nbytes));
      result.tensors.push_back({tensor->name, tensor->dtype, tensor->shape, bytes, mapped});
      ++result.stats.tensors;
      if (!is_misaligned(*tensor) || tensor->nbytes == 0) continue;
      const auto arena = host_pool(options.pool)->allocate(tensor->nbytes);
      selected.file->read(tensor->offset, arena->data(), tensor->nbytes);
      result.tensors.back().bytes = {arena->data(), static_cast<std::size_t>(tensor->nbytes)};
      result.tensors.back().memory = arena;
      ++result.stats.tensors_moved;
      result.stats.bytes_buffered += tensor->nbytes;
    }
  }
  result.stats.bytes = selection.nbytes;
  result.stats.bytes_mapped = selection.nbytes - result.stats.bytes_buffered;
  result.stats.path = "mapped";
  result.stats.landing = "mapped";
  result.stats.backend = "inline";
  result.stats.reason = options.cache == CachePolicy::kMap ? "a mapping was asked for"
                                                           : "the page cache holds everything, so it is mapped and not copied";
  result.stats.seconds = watch.seconds();
  if (options.progress && !options.progress({selection.nbytes, selection.nbytes, result.stats.seconds})) {
    throw Error(ErrorKind::kCancelled, "cancelled");
  }
  return result;
}

}  // namespace penstock
