// Loads that map: zero-copy, private, writable views of the page cache.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "api/loading.h"
#include "base/error.h"
#include "base/page.h"
#include "format/torch_file.h"

namespace penstock {
namespace {

// Pages are looked for, and asked for ahead of their use, so many bytes at a time.
constexpr std::uint64_t kChunk = 8 * kMiB;
constexpr std::size_t kChunksAhead = 16;
constexpr std::uint64_t kSmallGap = 64 * kKiB;

// A private mapping of part of a file from `offset` on; `skew` is where the first byte asked for is in it.
struct MappedRange {
  Mapping mapping;
  std::uint64_t offset = 0;
  std::uint64_t skew = 0;
};

std::shared_ptr<MappedRange> map_range(const File& file, ByteRange range) {
  const std::uint64_t begin = align_down(range.begin, page_size());
  const std::uint64_t length = range.end - begin;
  auto mapped = std::make_shared<MappedRange>();
  mapped->offset = begin;
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

// The stretches of a file that hold what is wanted; small gaps are part of them.
std::vector<ByteRange> stretches_of(const FileSelection& selected) {
  std::vector<ByteRange> stretches;
  for (const TensorInfo* tensor : selected.tensors) {
    if (tensor->nbytes == 0) continue;
    const ByteRange range{tensor->offset, tensor->offset + tensor->nbytes};
    if (stretches.empty() || range.begin > stretches.back().end + kSmallGap) {
      stretches.push_back(range);
    } else {
      stretches.back().end = std::max(stretches.back().end, range.end);
    }
  }
  return stretches;
}

// How much of what is wanted the page cache holds.
struct CacheShare {
  std::uint64_t resident = 0;
  std::uint64_t size = 0;

  // A mapping takes no memory but for what is missing, and that is not cleared first; a copy takes all of it.
  bool worth_completing() const { return resident >= size - size / 2; }
};

CacheShare cache_share_of(const Selection& selection) {
  CacheShare share;
  for (const FileSelection& selected : selection.files) {
    for (const ByteRange& stretch : stretches_of(selected)) {
      share.resident += selected.file->resident_bytes(stretch);
      share.size += stretch.size();
    }
  }
  return share;
}

// A part of what is wanted; starts with a page.
struct Chunk {
  ByteRange range;
  bool is_missing = false;  // in part at least
};

std::vector<Chunk> chunks_of(const FileSelection& selected) {
  std::vector<Chunk> chunks;
  for (const ByteRange& stretch : stretches_of(selected)) {
    for (std::uint64_t begin = align_down(stretch.begin, page_size()); begin < stretch.end; begin += kChunk) {
      const ByteRange range{begin, std::min(begin + kChunk, stretch.end)};
      chunks.push_back({range, selected.file->resident_bytes(range) < range.size()});
    }
  }
  return chunks;
}

void populate_from_cache(const File& file, std::byte* data, std::uint64_t nbytes) {
  int result = 0;
  do {
    result = ::madvise(data, nbytes, MADV_POPULATE_READ);
  } while (result != 0 && errno == EINTR);
  // Kernels before 5.14 can't be asked; there the pages come when they are touched.
  if (result == 0 || errno == EINVAL) return;
  const int error_number = errno;
  file.check_unchanged();  // where it was cut short, that is what to say
  throw_errno(file.path(), "cannot read into the page cache", error_number);
}

// Brings in what the page cache lacks, where a failed read is an error and not yet a signal. `arrived` is told of every
// further stretch of bytes that is there.
void complete(const FileSelection& selected, const MappedRange& mapped,
              const std::function<void(std::uint64_t)>& arrived) {
  const File& file = *selected.file;
  const std::vector<Chunk> chunks = chunks_of(selected);
  if (std::none_of(chunks.begin(), chunks.end(), [](const Chunk& chunk) { return chunk.is_missing; })) return;
  std::size_t asked = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    for (; asked < chunks.size() && asked < i + kChunksAhead; ++asked) {
      if (chunks[asked].is_missing) file.prefetch(chunks[asked].range);
    }
    // Also what was there: what comes in may push it out, and not every kernel knows all that is missing.
    const ByteRange& range = chunks[i].range;
    populate_from_cache(file, mapped.mapping.data() + (range.begin - mapped.offset), range.size());
    arrived(range.size());
  }
  file.check_unchanged();
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

MapChoice choose_mapping(const Reader::State& state, const Selection& selection, const LoadOptions& options) {
  if (options.cache == CachePolicy::kMap) {
    if (options.dtype || options.verify) {
      throw_argument("cache policy mmap: a mapping can be neither converted (dtype) nor verified");
    }
    return {true, "a mapping was asked for"};
  }
  if (options.cache == CachePolicy::kCopy) return {false, "a copy was asked for"};
  if (options.cache != CachePolicy::kAuto) return {false, "the cache policy asks for reads"};
  if (options.dtype || options.verify) return {false, "what is converted or verified has to be read"};
  if (decide_landing(options.landing) != Landing::kAuto) return {false, "a way to land was asked for"};
  if (selection.nbytes == 0) return {false, "there is nothing to map"};
  for (const FileSelection& selected : selection.files) {
    // Tensors that would have to be moved anyway are better read together.
    if (std::any_of(selected.tensors.begin(), selected.tensors.end(), is_misaligned)) {
      return {false, "some tensors are misaligned in the file and have to be moved"};
    }
    if (!selected.file->on_local_filesystem()) return {false, "the filesystem is not known to be local"};
    // A mapping would lose its bytes when they are rewritten. People do that to torch files all the time: torch.save does.
    const std::string& format = state.infos[selected.tensors.front()->file].format;
    if (format == torch::kZipFormat || format == torch::kLegacyFormat) {
      return {false, "torch files are often rewritten in place, so they are copied"};
    }
    if (selected.file->is_open_for_writing()) return {false, "the file is open for writing, so it is copied"};
  }
  const CacheShare cache = cache_share_of(selection);
  if (!cache.worth_completing()) return {false, "the page cache holds less than half of it"};
  if (cache.resident == cache.size) return {true, "the page cache holds everything, so it is mapped and not copied"};
  return {true, fmt::format("the page cache holds {}% of it: the rest is read into it, and nothing is copied",
                            100 * cache.resident / cache.size)};
}

LoadResult map_selection(const Selection& selection, const LoadOptions& options, std::string reason) {
  const Stopwatch watch;
  LoadResult result;
  result.tensors.reserve(selection.count);
  const auto report = [&](std::uint64_t bytes_done) {
    const Progress now{bytes_done, selection.nbytes, watch.seconds()};
    if (options.progress && !options.progress(now)) throw Error(ErrorKind::kCancelled, "cancelled");
  };
  std::uint64_t bytes_arrived = 0;
  double next_report = 0;
  const auto count = [&](std::uint64_t bytes) {
    bytes_arrived += bytes;
    if (watch.seconds() < next_report) return;
    next_report = watch.seconds() + kProgressSeconds;
    report(std::min(bytes_arrived, selection.nbytes));
  };
  for (const FileSelection& selected : selection.files) {
    selected.file->check_unchanged();
    const ByteRange hull = selected.hull();
    const auto mapped = map_range(*selected.file, hull);
    if (options.cache == CachePolicy::kAuto) complete(selected, *mapped, count);
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
  report(selection.nbytes);
  return result;
}

}  // namespace penstock
