#include "penstock/parallel.h"

#include <optional>

#include "api/shard_save.h"
#include "api/writer_state.h"
#include "base/bytes.h"
#include "base/error.h"
#include "transfer/load.h"

namespace penstock {

struct ParallelSave::State {
  explicit State(Writer collected) : writer(std::move(collected)) {
    Writer::State& work = WriterAccess::state(writer);
    if (work.options.max_shard_size > 0) throw_argument("{}: a parallel save makes one file", work.path.native());
    if (std::exchange(work.committed, true)) {
      throw_argument("{}: this Writer was committed before", work.path.native());
    }
    resolve_shared(work);
    // Where tensors lie in memory differs between processes; where they go must not.
    work.options.landing = Landing::kStaged;
    shard = {work.path, work.specs, work.origins, work.options.metadata};
    fingerprint = ShardSave::fingerprint(shard, work.options);
  }

  const SaveOptions& options() { return WriterAccess::state(writer).options; }

  void start(NewFile file, bool reserve) {
    if (save) throw_argument("{}: the file is open already", shard.path.native());
    save.emplace(shard, options(), std::move(file), reserve);
  }

  ShardSave& opened() {
    if (!save) throw_argument("{}: create() or join() comes first", shard.path.native());
    return *save;
  }

  Writer writer;
  Shard shard;
  std::uint64_t fingerprint = 0;
  std::optional<ShardSave> save;
  Stopwatch watch;
  Stats stats;
};

ParallelSave::ParallelSave(Writer writer) : state_(std::make_unique<State>(std::move(writer))) {}
ParallelSave::ParallelSave(ParallelSave&&) noexcept = default;
ParallelSave& ParallelSave::operator=(ParallelSave&&) noexcept = default;
ParallelSave::~ParallelSave() = default;

std::uint64_t ParallelSave::fingerprint() const noexcept {
  return state_->fingerprint;
}

std::string ParallelSave::create() {
  NewFile file = NewFile::create_named(state_->shard.path);
  std::string name = file.temporary();
  state_->start(std::move(file), /*reserve=*/true);
  return name;
}

void ParallelSave::join(const std::string& temporary) {
  state_->start(NewFile::join(state_->shard.path, temporary), /*reserve=*/false);
}

std::vector<ShareChecksum> ParallelSave::write(unsigned rank, unsigned count) {
  if (count == 0 || rank >= count) throw_argument("share {} of {}: there is no such share", rank, count);
  State& state = *state_;
  ShardSave& save = state.opened();
  const std::uint64_t step = align_up((save.nbytes() + count - 1) / count, 2 * kMiB);
  const ByteRange share{rank * step, (rank + 1) * step};
  const Settings settings = decide_settings(state.options().io, std::min(step, save.nbytes()), Direction::kWrite);
  Crew crew(settings, host_pool(nullptr));
  const auto& report = state.options().progress;
  auto checksums = save.write_share(crew, share, [&](std::uint64_t done) {
    return !report || report({done, std::min(step, save.nbytes()), state.watch.seconds()});
  });
  crew.stop();
  describe(crew, settings, state.stats);
  if (state.options().durable) save.file().sync();
  return checksums;
}

Stats ParallelSave::commit(std::span<const ShareChecksum> checksums) {
  State& state = *state_;
  ShardSave& save = state.opened();
  const Settings settings = decide_settings(state.options().io, 4 * kMiB, Direction::kWrite);
  {
    Crew crew(settings, host_pool(nullptr));
    save.write_rest(crew, checksums);
    crew.stop();
  }
  save.finish([] { return true; });
  save.file().publish();
  if (state.options().durable) save.file().sync_name();
  Stats stats = state.stats;
  stats.bytes = WriterAccess::state(state.writer).nbytes;
  stats.tensors = state.shard.specs.size();
  stats.path = save.route().name;
  stats.landing = "staged";
  stats.reason = "several processes wrote their shares of one file";
  stats.seconds = state.watch.seconds();
  return stats;
}

}  // namespace penstock
