#include "penstock/measure.h"

#include <fcntl.h>

#include "base/bytes.h"
#include "base/error.h"
#include "memory/arena.h"
#include "transfer/load.h"
#include "transfer/write.h"

namespace penstock {
namespace {

// Written again and again from where it lies, like a saver's staging memory that nobody has to fill.
constexpr std::uint64_t kPatternSize = 8 * kMiB;

Throughput report(Crew& crew, std::uint64_t bytes, double seconds, std::string method) {
  return {bytes, seconds, std::move(method), crew.backend()};
}

}  // namespace

Throughput measure_read(const std::filesystem::path& path, const IoOptions& io, std::uint64_t max_bytes) {
  const auto file = std::make_shared<const File>(File::open(path));
  const std::uint64_t nbytes = std::min(file->size(), max_bytes);
  const Settings settings = decide_settings(io, nbytes);
  auto batch = std::make_shared<ReadBatch>();
  batch->discard = true;
  batch->tasks.push_back(
      plan_file({file, {{0, nbytes, 0}}}, {CachePolicy::kDirect, LandingWay::kStaged, false}, settings.block_size));
  const bool direct = static_cast<bool>(file->direct().fd);
  Crew crew(settings, host_pool(nullptr));
  const Stopwatch watch;
  start_reading(crew, batch);
  wait_with_progress(*batch, {}, nbytes, watch);
  return report(crew, nbytes, watch.seconds(), direct ? "direct" : "buffered");
}

Throughput measure_write(const std::filesystem::path& directory, const IoOptions& io, WriteMethod method,
                         std::uint64_t nbytes) {
  const Settings settings = decide_settings(io, nbytes, Direction::kWrite);
  const auto pattern = host_pool(nullptr)->allocate_staging(kPatternSize);
  for (std::uint64_t i = 0; i < kPatternSize; ++i) pattern->data()[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  NewFile file = NewFile::create(directory / "penstock-measure");  // never published, so never seen
  const WriteRoute route = choose_route(file, method, Landing::kInPlace);
  file.reserve(align_up(nbytes, route.alignment));
  std::vector<WritePart> parts;
  for (std::uint64_t offset = 0; offset < nbytes; offset += kPatternSize) {
    parts.push_back({offset, std::min(kPatternSize, nbytes - offset), {pattern->data(), {}}});
  }
  const auto batch = plan_write(file, route, parts, settings.block_size);
  Crew crew(settings, host_pool(nullptr));
  const Stopwatch watch;
  start_writing(crew, batch);
  wait_with_progress(*batch, {}, nbytes, watch);
  file.finish(nbytes, /*durable=*/true);
  return report(crew, nbytes, watch.seconds(), route.name);
}

void drop_page_cache(const std::filesystem::path& path) {
  const File file = File::open(path);
  // Dirty pages can't be dropped.
  if (::fdatasync(file.fd()) != 0) throw_errno(path.native(), "cannot sync", errno);
  if (const int error = ::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED); error != 0) {
    throw_errno(path.native(), "cannot drop its pages", error);
  }
}

std::string available_backends() {
  return uring_is_available() ? "uring, threads" : "threads";
}

}  // namespace penstock
