#include "penstock/parallel.h"

#include <algorithm>
#include <optional>

#include "api/save/edges.h"
#include "api/save/file_layout.h"
#include "api/save/file_writer.h"
#include "api/save/writer_state.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/tuning.h"
#include "memory/arena.h"
#include "transfer/session.h"

namespace penstock {
namespace {

FileContent content_of(const Writer::State& state) {
  FileContent content{state.path, {}, {}, state.options.metadata};
  for (const AddedTensor& tensor : state.tensors) {
    content.specs.push_back(tensor.spec);
    content.origins.push_back(by_whole_elements(tensor.origin, dtype_bits(tensor.spec.dtype) / 8));
  }
  return content;
}

Writer::State& judged(Writer& writer) {
  Writer::State& work = WriterAccess::state(writer);
  if (work.options.max_shard_size > 0) throw_argument("{}: a parallel save makes one file", work.path.native());
  work.begin_commit();
  find_devices(work);
  resolve_shared(work);
  return work;
}

}  // namespace

struct ParallelSave::State {
  explicit State(Writer collected)
      : writer(std::move(collected)), work(judged(writer)), content(content_of(work)), layout(content, work.options) {}

  void open(NewFile new_file) {
    if (file) throw_argument("{}: the file is open already", content.path.native());
    // Shares pass through staging blocks: where tensors lie in memory differs between processes.
    file.emplace(std::move(new_file), WriteRequest{work.options.method, Landing::kStaged}, layout.file_size());
  }

  FileWriter& opened() {
    if (!file) throw_argument("{}: create() or join() comes first", content.path.native());
    return *file;
  }

  // The same in every process, whatever its route is.
  std::uint64_t alignment() { return std::max<std::uint64_t>(opened().alignment(), 4 * kKiB); }

  std::vector<WritePart> parts_within(ByteRange share);
  std::vector<std::uint32_t> join(std::span<const ShareChecksum> shares, ChecksumKind kind,
                                  std::span<const WritePart> interiors, Crew& crew);
  // Tensors are read after what is queued on the caller's streams now.
  std::unique_ptr<Crew> make_crew(std::uint64_t nbytes);
  // Of the crew that was made first: the shares are most of the file.
  void describe_devices() {
    if (stats.device.empty()) work.devices.describe(stats);
  }

  Writer writer;
  Writer::State& work;
  const FileContent content;
  const FileLayout layout;
  std::optional<FileWriter> file;
  Stopwatch watch;
  Stats stats;
};

// The whole pages of tensors that lie in `share`, in the order of the layout; empty where none do.
std::vector<WritePart> ParallelSave::State::parts_within(ByteRange share) {
  std::vector<WritePart> mine = layout.interior_parts(alignment());
  for (WritePart& part : mine) {
    const std::uint64_t begin = std::max(part.offset, share.begin);
    const std::uint64_t end = std::min(part.offset + part.nbytes, share.end);
    part = begin < end ? cut_part(part, begin, end) : WritePart{part.offset, 0, part.origin};
  }
  return mine;
}

// The checksum of each tensor, out of those of its shares and of its edges.
std::vector<std::uint32_t> ParallelSave::State::join(std::span<const ShareChecksum> shares, ChecksumKind kind,
                                                     std::span<const WritePart> interiors, Crew& crew) {
  ChecksumCollector collector;
  std::vector<std::uint64_t> covered(content.specs.size());
  for (const ShareChecksum& share : shares) {
    if (share.tensor >= covered.size()) throw_argument("{}: a checksum of no tensor", content.path.native());
    covered[share.tensor] += share.nbytes;
    collector.add_known(kind, share.tensor, share.offset, share.checksum, share.nbytes);
  }
  for (std::size_t i = 0; i < interiors.size(); ++i) {
    const std::uint32_t tensor = layout.order()[i];
    if (covered[tensor] == interiors[i].nbytes) continue;
    throw_argument("{}: tensor {}: of {} bytes checksums came for {}", content.path.native(),
                   in_quotes(content.specs[tensor].name), interiors[i].nbytes, covered[tensor]);
  }
  add_edges(content, layout, alignment(), crew, collector);
  return collector.finish(content.specs.size());
}

std::unique_ptr<Crew> ParallelSave::State::make_crew(std::uint64_t nbytes) {
  wait_for_streams(work);
  settle_streams(work);
  work.devices.start_gds(work.options.gds, "");
  opened().use_gds(work.devices.gds());
  const Settings settings = decide_settings(work.options.io, nbytes, Direction::kWrite, work.devices.passage());
  return std::make_unique<Crew>(settings, work.devices.staging(settings, host_pool(nullptr)));
}

ParallelSave::ParallelSave(Writer writer) : state_(std::make_unique<State>(std::move(writer))) {}
ParallelSave::ParallelSave(ParallelSave&&) noexcept = default;
ParallelSave& ParallelSave::operator=(ParallelSave&&) noexcept = default;
ParallelSave::~ParallelSave() = default;

std::uint64_t ParallelSave::fingerprint() const noexcept {
  return state_->layout.fingerprint();
}

std::string ParallelSave::create() {
  NewFile file = NewFile::create_named(state_->content.path);
  std::string name = file.temporary();
  state_->open(std::move(file));
  state_->opened().reserve(state_->layout.file_size());
  return name;
}

void ParallelSave::join(const std::string& temporary) {
  state_->open(NewFile::join(state_->content.path, temporary));
}

std::vector<ShareChecksum> ParallelSave::write(unsigned rank, unsigned count) {
  if (count == 0 || rank >= count) throw_argument("share {} of {}: there is no such share", rank, count);
  State& state = *state_;
  FileWriter& file = state.opened();
  const SaveOptions& options = state.work.options;
  const std::uint64_t file_size = state.layout.file_size();
  const std::uint64_t step = align_up((file_size + count - 1) / count, tuning::kBlockSize);
  const std::vector<WritePart> mine = state.parts_within({rank * step, (rank + 1) * step});
  const auto kind = state.layout.wanted_checksums();
  const std::span<const std::uint32_t> order = state.layout.order();
  ChecksumCollector collector;
  PieceObserver observe;
  if (kind) {
    observe = [&](const Piece& piece, const std::byte* bytes) {
      collector.add(*kind, order[piece.owner], piece.offset, bytes, piece.nbytes);
    };
  }
  const std::uint64_t share_size = std::min(step, file_size);
  const std::unique_ptr<Crew> crew = state.make_crew(share_size);
  file.write(*crew, mine, std::move(observe), [&](std::uint64_t done) {
    return !options.progress || options.progress({done, share_size, state.watch.seconds()});
  });
  crew->stop();
  describe_crew(*crew, state.stats);
  state.describe_devices();
  if (options.durable) file.file().sync();
  std::vector<ShareChecksum> found;
  const auto checksums = collector.finish(state.content.specs.size());
  for (std::size_t i = 0; kind && i < mine.size(); ++i) {
    if (mine[i].nbytes > 0) found.push_back({order[i], checksums[order[i]], mine[i].offset, mine[i].nbytes});
  }
  return found;
}

Stats ParallelSave::commit(std::span<const ShareChecksum> checksums) {
  State& state = *state_;
  FileWriter& file = state.opened();
  const SaveOptions& options = state.work.options;
  const std::vector<WritePart> interiors = state.layout.interior_parts(state.alignment());
  const auto kind = state.layout.wanted_checksums();
  std::unique_ptr<Crew> crew = state.make_crew(tuning::kSmallTransfer);
  const FileLayout known =
      kind ? state.layout.with_checksums(state.join(checksums, *kind, interiors, *crew)) : state.layout;
  file.write(*crew, without(known.all_parts(), interiors), {}, [](std::uint64_t) { return true; });
  crew.reset();
  file.finish(state.layout.file_size(), options.durable, [] { return true; });
  file.file().publish();
  if (options.durable) file.file().sync_name();
  state.describe_devices();
  Stats stats = state.stats;
  stats.bytes = state.work.nbytes;
  stats.tensors = state.content.specs.size();
  stats.path = file.route().direct ? "direct" : "buffered";
  stats.landing = "staged";
  stats.reason = "several processes wrote their shares of one file";
  stats.seconds = state.watch.seconds();
  return stats;
}

}  // namespace penstock
