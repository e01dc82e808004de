#include "penstock/measure.h"

#include <fcntl.h>

#include "api/save/file_writer.h"
#include "base/bytes.h"
#include "base/error.h"
#include "memory/arena.h"
#include "transfer/session.h"

namespace penstock {
namespace {

// Written again and again from where it lies, like a saver's staging memory that nobody has to fill.
constexpr std::uint64_t kPatternSize = 8 * kMiB;

}  // namespace

Throughput measure_read(const std::filesystem::path& path, const IoOptions& io, std::uint64_t max_bytes) {
  const auto file = std::make_shared<const File>(File::open(path));
  const std::uint64_t nbytes = std::min(file->size(), max_bytes);
  const bool direct = static_cast<bool>(file->direct().fd);
  const ReadRoute route{direct ? ReadPath::kDirect : ReadPath::kDropBehind, ReadLanding::kStaged,
                        LandingReason::kStagedAsked};
  ReadSession session(decide_settings(io, nbytes), host_pool(nullptr));
  const Stopwatch watch;
  const auto batch = session.start({{file, {{0, nbytes, kNowhere}}, route, std::make_shared<NoDestination>()}});
  ReadSession::wait(*batch, {}, nbytes, watch);
  const double seconds = watch.seconds();
  Stats stats;
  session.finish(stats);
  return {nbytes, seconds, direct ? "direct" : "buffered", stats.backend};
}

Throughput measure_write(const std::filesystem::path& directory, const IoOptions& io, WriteMethod method,
                         std::uint64_t nbytes) {
  const auto pattern = host_pool(nullptr)->allocate_staging(kPatternSize);
  for (std::uint64_t i = 0; i < kPatternSize; ++i) pattern->data()[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  FileWriter writer(NewFile::create(directory / "penstock-measure"), {method, Landing::kInPlace}, nbytes);
  writer.reserve(nbytes);  // never published, so never seen
  std::vector<WritePart> parts;
  for (std::uint64_t offset = 0; offset < nbytes; offset += kPatternSize) {
    parts.push_back({offset, std::min(kPatternSize, nbytes - offset), {pattern->data(), {}}});
  }
  Crew crew(decide_settings(io, nbytes, Direction::kWrite), host_pool(nullptr));
  const Stopwatch watch;
  writer.write(crew, parts, {}, [](std::uint64_t) { return true; });
  writer.finish(nbytes, /*durable=*/true, [] { return true; });
  return {nbytes, watch.seconds(), writer.route().direct ? "direct" : "buffered", crew.backend()};
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
