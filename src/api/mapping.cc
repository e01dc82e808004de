// Loads that map: zero-copy, private, writable views of the page cache.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "api/loading.h"
#include "base/error.h"
#include "base/page.h"

namespace penstock {
namespace {

// A private mapping of part of a file; `skew` is where the first byte asked for is in it.
struct MappedRange {
  Mapping mapping;
  std::uint64_t skew = 0;
};

std::shared_ptr<MappedRange> map_range(const File& file, ByteRange range) {
  const std::uint64_t begin = align_down(range.begin, page_size());
  const std::uint64_t length = range.end - begin;
  auto mapped = std::make_shared<MappedRange>();
  mapped->skew = range.begin - begin;
  if (range.size() == 0) return mapped;
  void* data = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.fd(),
                      static_cast<off_t>(begin));
  if (data == MAP_FAILED)
    throw_errno(file.path(), fmt::format("cannot map {} bytes at offset {}", length, begin), errno);
  mapped->mapping = Mapping(data, length);
  return mapped;
}

bool is_misaligned(const TensorInfo* tensor) {
  return tensor->nbytes > 0 && !is_aligned(tensor->offset, dtype_alignment(tensor->dtype));
}

// The kernel may have taken a page here and there; those are read again before the mapping is handed out.
bool is_mostly_resident(const File& file, ByteRange range) {
  const std::uint64_t resident = file.resident_bytes(range);
  return resident == range.size() || resident >= range.size() - range.size() / 10;
}

// Brings in what the page cache lacks, where a failed read is an error and not yet a signal.
void complete(const File& file, const Mapping& mapping) {
  int result = 0;
  do {
    result = ::madvise(mapping.data(), mapping.size(), MADV_POPULATE_READ);
  } while (result != 0 && errno == EINTR);
  // Kernels before 5.14 can't be asked; there the pages come when they are touched.
  if (result != 0 && errno != EINVAL) throw_errno(file.path(), "cannot read into the page cache", errno);
}

// Gives the misaligned tensors of a mapped file memory where they are aligned, all of them together.
void move_misaligned(const FileSelection& selected, std::span<Tensor> tensors, HostPool& pool, Stats& stats) {
  constexpr std::uint64_t kCacheLine = 64;
  std::uint64_t nbytes = 0;
  for (const TensorInfo* tensor : selected.tensors)
    nbytes += is_misaligned(tensor) ? align_up(tensor->nbytes, kCacheLine) : 0;
  if (nbytes == 0) return;
  const auto arena = pool.allocate(nbytes);
  std::byte* next = arena->data();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo* tensor = selected.tensors[i];
    if (!is_misaligned(tensor)) continue;
    selected.file->read(tensor->offset, next, tensor->nbytes);
    tensors[i].bytes = {next, static_cast<std::size_t>(tensor->nbytes)};
    tensors[i].memory = arena;
    next += align_up(tensor->nbytes, kCacheLine);
    ++stats.tensors_moved;
    stats.bytes_buffered += tensor->nbytes;
  }
}

}  // namespace

MapChoice choose_mapping(const Selection& selection, const LoadOptions& options) {
  if (options.cache == CachePolicy::kMap) {
    if (options.dtype || options.verify) {
      throw_argument("cache policy mmap: a mapping can be neither converted (dtype) nor verified");
    }
    return {true, "a mapping was asked for"};
  }
  if (options.cache != CachePolicy::kAuto) return {false, "the cache policy asks for reads"};
  if (options.dtype || options.verify) return {false, "what is converted or verified has to be read"};
  if (decide_landing(options.landing) != Landing::kAuto) return {false, "a way to land was asked for"};
  if (selection.nbytes == 0) return {false, "there is nothing to map"};
  for (const FileSelection& selected : selection.files) {
    const File& file = *selected.file;
    const ByteRange hull = selected.hull();
    // Tensors that would have to be moved anyway are better read together.
    if (std::any_of(selected.tensors.begin(), selected.tensors.end(), is_misaligned)) {
      return {false, "some tensors are misaligned in the file and have to be moved"};
    }
    if (!is_mostly_resident(file, hull)) return {false, "the page cache doesn't hold everything"};
    if (!file.on_local_filesystem()) return {false, "the filesystem is not known to be local"};
  }
  return {true, "the page cache holds everything, so it is mapped and not copied"};
}

LoadResult map_selection(const Selection& selection, const LoadOptions& options, std::string reason) {
  const Stopwatch watch;
  LoadResult result;
  result.tensors.reserve(selection.count);
  for (const FileSelection& selected : selection.files) {
    selected.file->check_unchanged();
    const ByteRange hull = selected.hull();
    const auto mapped = map_range(*selected.file, hull);
    if (options.cache == CachePolicy::kAuto && selected.file->resident_bytes(hull) < hull.size()) {
      complete(*selected.file, mapped->mapping);
    }
    std::byte* base = mapped->mapping.data();
    for (const TensorInfo* tensor : selected.tensors) {
      const std::span<std::byte> bytes(base + (base != nullptr ? mapped->skew + (tensor->offset - hull.begin) : 0),
                                       static_cast<std::size_t>(tensor->nbytes));
      result.tensors.push_back({tensor->name, tensor->dtype, tensor->shape, bytes, mapped});
    }
    result.stats.tensors += selected.tensors.size();
    move_misaligned(selected, std::span(result.tensors).last(selected.tensors.size()), *host_pool(options.pool),
                    result.stats);
  }
  result.stats.bytes = selection.nbytes;
  result.stats.bytes_mapped = selection.nbytes - result.stats.bytes_buffered;
  result.stats.path = "mapped";
  result.stats.landing = "mapped";
  result.stats.backend = "inline";
  result.stats.reason = std::move(reason);
  result.stats.seconds = watch.seconds();
  if (options.progress && !options.progress({selection.nbytes, selection.nbytes, result.stats.seconds})) {
    throw Error(ErrorKind::kCancelled, "cancelled");
  }
  return result;
}

}  // namespace penstock
