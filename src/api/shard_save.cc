#include "api/shard_save.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <map>
#include <thread>

#include "base/bytes.h"
#include "base/error.h"
#include "base/unique_fd.h"
#include "format/checksums.h"
#include "format/detect.h"
#include "transfer/checksum_collector.h"
#include "transfer/load.h"

namespace penstock {
namespace {

// Where the data should start so that as many bytes as possible can be written straight from tensor memory: file offset
// and address must agree modulo the alignment of direct I/O.
safetensors::Placement choose_placement(const Shard& shard, std::span<const std::uint64_t> offsets,
                                        std::uint64_t alignment) {
  constexpr std::uint64_t kWorthIt = 1 * kMiB;
  std::map<std::uint64_t, std::uint64_t> votes;  // phase -> bytes that it serves
  for (std::size_t i = 0; i < shard.specs.size(); ++i) {
    if (shard.origins[i].data == nullptr || shard.specs[i].nbytes < kWorthIt) continue;
    const std::uint64_t phase =
        (reinterpret_cast<std::uintptr_t>(shard.origins[i].data) - offsets[i]) & (alignment - 1);
    if (phase % 8 == 0) votes[phase] += shard.specs[i].nbytes;
  }
  if (votes.empty()) return {};
  const auto best =
      std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return {alignment, best->first};
}

// Syncs on a thread of its own, so that the caller stays able to stop: a file of which much is still in the page cache
// can take seconds. A sync that is given up goes on by itself on a second descriptor; its file has no name and will not
// get one.
void sync_watched(NewFile& file, const std::function<bool()>& keep_going) {
  UniqueFd copy(::dup(file.fd()));
  if (!copy) return;  // finish() syncs, unwatched
  std::promise<int> promise;
  std::future<int> synced = promise.get_future();
  try {
    std::thread([fd = std::move(copy), done = std::move(promise)]() mutable {
      done.set_value(::fsync(fd.get()) == 0 ? 0 : errno);
    }).detach();
  } catch (const std::system_error&) {
    return;
  }
  while (synced.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
    if (!keep_going()) throw Error(ErrorKind::kCancelled, "cancelled");
  }
  // The kernel tells of a lost write once: the sync in finish() would not hear of it again.
  if (const int error_number = synced.get(); error_number != 0) {
    throw_errno(file.path(), "sync failed, the data may not have reached the drive", error_number);
  }
}

// Small enough that asking the filesystem what it can do would take longer than writing through the page cache does.
bool is_small(const Shard& shard) {
  constexpr std::uint64_t kSmallFile = 256 * kKiB;
  std::uint64_t nbytes = 0;
  for (const TensorSpec& spec : shard.specs) nbytes += spec.nbytes;
  return nbytes <= kSmallFile;
}

WriteRoute decide_route(const Shard& shard, NewFile& file, const SaveOptions& options) {
  const Landing landing = decide_landing(options.landing);
  const bool automatic = options.method == WriteMethod::kAuto && landing == Landing::kAuto;
  return choose_route(file, automatic && is_small(shard) ? WriteMethod::kBuffered : options.method, landing);
}

}  // namespace

ShardSave::ShardSave(Shard shard, const SaveOptions& options)
    : shard_(std::move(shard)),
      options_(options),
      small_(is_small(shard_)),
      file_(NewFile::create(shard_.path)),
      route_(decide_route(shard_, file_, options)) {
  const Stopwatch layout_watch;
  if (options_.checksums) set_checksums(std::vector<std::uint32_t>(shard_.specs.size()));
  encode();
  layout_seconds_ = layout_watch.seconds();
  const Stopwatch reserve_watch;
  if (!small_) file_.reserve(align_up(layout_.file_size, route_.alignment));
  reserve_seconds_ = reserve_watch.seconds();
}

std::string ShardSave::reason() const {
  if (route_.direct) return "the filesystem takes direct writes";
  if (small_) return "a small file is quickest through the page cache";
  return "the filesystem refuses direct writes, or another way was asked for";
}

void ShardSave::write(Crew& crew, const std::function<bool(std::uint64_t)>& progress) {
  std::vector<WritePart> parts;
  parts.push_back({0, layout_.prefix.size(), {layout_.prefix.data(), {}}});
  for (const std::uint32_t number : layout_.order) {
    parts.push_back({layout_.offsets[number], shard_.specs[number].nbytes, shard_.origins[number]});
  }
  parts.push_back({layout_.file_size - layout_.suffix.size(), layout_.suffix.size(), {layout_.suffix.data(), {}}});
  add_zero_parts(parts, layout_.file_size);
  const auto batch = plan_write(file_, route_, parts, crew.settings().block_size);
  ChecksumCollector collector;
  if (options_.checksums) {
    batch->observe = [&collector](const Piece& piece, const std::byte* bytes) {
      collector.add(piece.owner, piece.offset, bytes, piece.nbytes);
    };
  }
  const Stopwatch watch;
  start_writing(crew, batch);
  wait_with_progress(
      *batch, [&](const Progress& now) { return progress(now.bytes_done); }, layout_.file_size, watch);
  if (options_.checksums) patch_checksums(collector.finish(parts.size()));
}

void ShardSave::finish(const std::function<bool()>& keep_going) {
  // Direct writes and small files leave the kernel nothing to do that would be worth watching.
  if (options_.durable && !route_.direct && !small_) sync_watched(file_, keep_going);
  file_.finish(layout_.file_size, options_.durable);
}

void ShardSave::encode() {
  EncodeOptions options;
  options.safetensors_placement = [this](std::span<const std::uint64_t> offsets) {
    return route_.direct && route_.straight ? choose_placement(shard_, offsets, std::max(route_.memory_alignment, 8u))
                                            : safetensors::Placement{};
  };
  options.flashpack = {options_.flashpack.align_bytes, options_.flashpack.keep_order, options_.flashpack.align_large};
  layout_ = encode_layout(options_.format, shard_.specs, shard_.metadata, options);
}

void ShardSave::set_checksums(const std::vector<std::uint32_t>& checksums) {
  shard_.metadata[std::string(kChecksumKey)] = encode_checksums(checksums);
}

// Header and footer were laid out with room for the checksums; now that they are known they are written again.
// `by_part` counts the header as part 0 and then follows the order of offsets, as the format wants them.
void ShardSave::patch_checksums(const std::vector<std::uint32_t>& by_part) {
  const auto first = by_part.begin() + 1;
  set_checksums(std::vector<std::uint32_t>(first, first + static_cast<std::ptrdiff_t>(shard_.specs.size())));
  encode();
  file_.use_buffered();
  file_.write(0, layout_.prefix.data(), layout_.prefix.size());
  file_.write(layout_.file_size - layout_.suffix.size(), layout_.suffix.data(), layout_.suffix.size());
}

}  // namespace penstock
