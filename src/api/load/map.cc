#include "api/load/map.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/page.h"
#include "base/tuning.h"

namespace penstock {
namespace {

// Maps the pages of what is mapped already, reading those that are missing.
void populate_mapping(const File& file, std::byte* data, std::uint64_t nbytes) {
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

std::vector<ByteRange> chunks_of(std::span<const TensorInfo* const> tensors) {
  std::vector<ByteRange> chunks;
  for (const ByteRange& stretch : stretches_of(tensors)) {
    for (std::uint64_t begin = align_down(stretch.begin, page_size()); begin < stretch.end;
         begin += tuning::kMapChunk) {
      chunks.push_back({begin, std::min(begin + tuning::kMapChunk, stretch.end)});
    }
  }
  return chunks;
}

}  // namespace

std::shared_ptr<MappedRange> map_range(const File& file, ByteRange range) {
  auto mapped = std::make_shared<MappedRange>();
  mapped->offset = align_down(range.begin, page_size());
  if (range.size() == 0) return mapped;
  const std::uint64_t length = range.end - mapped->offset;
  void* data = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.fd(),
                      static_cast<off_t>(mapped->offset));
  if (data == MAP_FAILED) {
    throw_errno(file.path(), fmt::format("cannot map {} bytes at offset {}", length, mapped->offset), errno);
  }
  mapped->mapping = Mapping(data, length);
  return mapped;
}

void complete(const File& file, std::span<const TensorInfo* const> tensors, const MappedRange& mapped,
              const std::function<void(std::uint64_t)>& arrived) {
  const std::vector<ByteRange> chunks = chunks_of(tensors);
  std::size_t asked = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    for (; asked < chunks.size() && asked < i + tuning::kMapChunksAhead; ++asked) file.prefetch(chunks[asked]);
    // Also what was there: what comes in may push it out, and not every kernel knows all that is missing.
    populate_mapping(file, mapped.at(chunks[i].begin), chunks[i].size());
    arrived(chunks[i].size());
  }
  file.check_unchanged();
}

std::vector<Tensor> map_tensors(const File& file, std::span<const TensorInfo* const> tensors,
                                const std::shared_ptr<MappedRange>& mapped, HostPool& pool, Stats& stats) {
  std::uint64_t moved_bytes = 0;
  for (const TensorInfo* tensor : tensors) {
    if (is_misaligned(*tensor)) moved_bytes += align_up(tensor->nbytes, kCacheLine);
  }
  const std::shared_ptr<Arena> moved = moved_bytes > 0 ? pool.allocate(moved_bytes) : nullptr;
  std::byte* next = moved != nullptr ? moved->data() : nullptr;
  std::vector<Tensor> made;
  made.reserve(tensors.size());
  for (const TensorInfo* tensor : tensors) {
    std::byte* data = tensor->nbytes > 0 ? mapped->at(tensor->offset) : mapped->mapping.data();
    std::shared_ptr<void> memory = mapped;
    if (is_misaligned(*tensor)) {
      file.read(tensor->offset, next, tensor->nbytes);
      data = next;
      memory = moved;
      next += align_up(tensor->nbytes, kCacheLine);
      ++stats.tensors_moved;
      stats.bytes_buffered += tensor->nbytes;
    }
    made.push_back({tensor->name,
                    tensor->dtype,
                    tensor->shape,
                    {data, static_cast<std::size_t>(tensor->nbytes)},
                    std::move(memory)});
  }
  stats.tensors += tensors.size();
  return made;
}

void describe_mapping(const MapDecision& decision, std::uint64_t nbytes, Stats& stats) {
  stats.bytes = nbytes;
  stats.bytes_mapped = nbytes - stats.bytes_buffered;
  stats.path = "mapped";
  stats.landing = "mapped";
  stats.backend = "inline";
  stats.reason = describe(decision);
}

}  // namespace penstock
