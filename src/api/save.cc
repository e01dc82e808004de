// run_save: from what a Writer collected to files under their names.
#include <sys/types.h>

#include <algorithm>
#include <map>
#include <optional>

#include "api/shard_save.h"
#include "api/writer_state.h"
#include "base/error.h"
#include "format/shards.h"
#include "transfer/load.h"

namespace penstock {
namespace {

std::vector<Shard> make_shards(const Writer::State& state, ShardIndex& index) {
  std::vector<std::uint32_t> assignment(state.specs.size(), 0);
  if (state.options.max_shard_size > 0) assignment = assign_shards(state.specs, state.options.max_shard_size);
  const std::uint32_t count = assignment.empty() ? 1 : *std::max_element(assignment.begin(), assignment.end()) + 1;
  std::vector<Shard> shards(count);
  for (std::uint32_t number = 0; number < count; ++number) {
    const std::string name = state.path.filename().native();
    index.files.push_back(count == 1 ? name : shard_file_name(name, number, count));
    shards[number].path = state.path.parent_path() / index.files.back();
    shards[number].metadata = state.options.metadata;
  }
  for (std::size_t i = 0; i < state.specs.size(); ++i) {
    shards[assignment[i]].specs.push_back(state.specs[i]);
    shards[assignment[i]].origins.push_back(state.origins[i]);
    index.weight_map.emplace(state.specs[i].name, assignment[i]);
  }
  return shards;
}

// Tensor names must be unique over all shards; within one the format checks.
void refuse_duplicate_names(const Writer::State& state, const ShardIndex& index) {
  if (index.weight_map.size() == state.specs.size()) return;
  std::map<std::string_view, int> seen;
  for (const TensorSpec& spec : state.specs) {
    if (++seen[spec.name] == 2)
      throw_argument("{}: tensor {} was added twice", state.path.native(), in_quotes(spec.name));
  }
}

// The index of a sharded save, written but not yet under its name.
NewFile write_index(const std::filesystem::path& path, const std::string& text, bool durable) {
  NewFile file = NewFile::create(path);
  file.write(0, text.data(), text.size());
  file.finish(text.size(), durable);
  return file;
}

// Gives all files their names, the index last. When one fails, those that got a name nobody had before lose it again.
void publish_all(std::span<NewFile* const> files) {
  std::size_t published = 0;
  try {
    for (; published < files.size(); ++published) files[published]->publish();
  } catch (...) {
    while (published > 0) files[--published]->withdraw();
    throw;
  }
}

void remove_stale_index(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(std::filesystem::symlink_status(path, ignored)))
    std::filesystem::remove(path, ignored);
}

// Steps that are met once per shard are added up.
struct Phases {
  std::vector<Phase> list;

  void add(std::string_view name, double seconds) {
    const auto known = std::find_if(list.begin(), list.end(), [&](const Phase& phase) { return phase.name == name; });
    if (known != list.end()) {
      known->seconds += seconds;
    } else {
      list.push_back({std::string(name), seconds});
    }
  }
};

std::string name_landing(const Stats& stats) {
  const std::uint64_t moved = stats.bytes_direct + stats.bytes_buffered;
  return stats.bytes_copied == moved ? "staged" : stats.bytes_copied * 20 < moved ? "straight" : "mixed";
}

}  // namespace

Stats run_save(Writer::State& state, const SaveHooks& hooks) {
  const Stopwatch watch;
  if (std::exchange(state.committed, true)) throw_argument("{}: this Writer was committed before", state.path.native());
  resolve_shared(state);
  ShardIndex index;
  std::vector<Shard> shards = make_shards(state, index);
  refuse_duplicate_names(state, index);
  const bool sharded = shards.size() > 1;
  const auto index_path = state.path.parent_path() / index_file_name(state.path.filename().native());
  if (hooks.check_target) {
    for (const Shard& shard : shards) hooks.check_target(shard.path);
    if (sharded) hooks.check_target(index_path);
  }

  Phases phases;
  std::vector<std::unique_ptr<ShardSave>> saves;
  std::uint64_t total = 0;
  phases.add("build_index", watch.seconds());
  for (Shard& shard : shards) {
    saves.push_back(std::make_unique<ShardSave>(std::move(shard), state.options, static_cast<bool>(hooks.snapshot)));
    total += saves.back()->nbytes();
    phases.add("build_index", saves.back()->layout_seconds());
    phases.add("reserve", saves.back()->reserve_seconds());
  }
  if (hooks.snapshot) {
    const Stopwatch snapshot_watch;
    hooks.snapshot(saves);
    phases.add("snapshot", snapshot_watch.seconds());
  }
  std::optional<NewFile> index_file;
  if (sharded)
    index_file.emplace(write_index(index_path, encode_shard_index(index, state.nbytes), state.options.durable));

  const Settings settings = decide_settings(state.options.io, total, Direction::kWrite);
  Stats stats;
  const Stopwatch write_watch;
  std::uint64_t done_before = 0;
  const auto report = [&](std::uint64_t done) {
    return !state.options.progress || state.options.progress({done_before + done, total, watch.seconds()});
  };
  {
    Crew crew(settings, host_pool(nullptr));
    for (const auto& save : saves) {
      save->write(crew, report);
      done_before += save->nbytes();
    }
    crew.stop();
    describe(crew, settings, stats);
  }
  if (hooks.all_read) hooks.all_read();

  phases.add("write", write_watch.seconds());

  const Stopwatch sync_watch;
  std::vector<NewFile*> files;
  for (const auto& save : saves) {
    save->finish([&] { return report(0); });
    files.push_back(&save->file());
  }
  if (index_file) files.push_back(&*index_file);
  phases.add("sync", sync_watch.seconds());
  const Stopwatch rename_watch;
  publish_all(files);
  // A sharded checkpoint of this name that was here before is replaced: its index would hide the new file.
  if (!sharded && !hooks.keep_index) remove_stale_index(index_path);
  if (state.options.durable) {
    for (NewFile* file : files) file->sync_name();
  }
  phases.add("rename", rename_watch.seconds());
  stats.phases = std::move(phases.list);
  stats.sync_seconds = sync_watch.seconds();
  stats.bytes = state.nbytes;
  stats.tensors = state.specs.size();
  stats.path = saves.front()->route().name;
  stats.landing = name_landing(stats);
  stats.reason = saves.front()->reason();
  stats.seconds = watch.seconds();
  return stats;
}

}  // namespace penstock
