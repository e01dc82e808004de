// run_save: from what a Writer collected to files under their names.
#include <algorithm>
#include <map>
#include <mutex>

#include "api/writer_state.h"
#include "base/bytes.h"
#include "base/error.h"
#include "format/checksums.h"
#include "format/safetensors.h"
#include "format/shards.h"
#include "transfer/checksum_collector.h"
#include "transfer/load.h"

namespace penstock {
namespace {

// The tensors of one file.
struct Shard {
  std::filesystem::path path;
  std::vector<TensorSpec> specs;
  std::vector<Origin> origins;
  Metadata metadata;
};

// Where the data should start so that as many bytes as possible can be written straight from tensor memory: file offset and
// address must agree modulo the alignment of direct I/O.
safetensors::Placement choose_placement(const Shard& shard, std::span<const std::uint64_t> offsets, std::uint64_t alignment) {
  constexpr std::uint64_t kWorthIt = 1 * kMiB;
  std::map<std::uint64_t, std::uint64_t> votes;  // phase -> bytes that it serves
  for (std::size_t i = 0; i < shard.specs.size(); ++i) {
    if (shard.origins[i].data == nullptr || shard.specs[i].nbytes < kWorthIt) continue;
    const std::uint64_t phase = (reinterpret_cast<std::uintptr_t>(shard.origins[i].data) - offsets[i]) & (alignment - 1);
    if (phase % 8 == 0) votes[phase] += shard.specs[i].nbytes;
  }
  if (votes.empty()) return {};
  const auto best = std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return {alignment, best->first};
}

class ShardSave {
 public:
  ShardSave(Shard shard, const SaveOptions& options)
      : shard_(std::move(shard)), options_(options), file_(NewFile::create(shard_.path)),
        route_(choose_route(file_, options.method)) {
    if (options_.checksums) set_checksums(std::vector<std::uint32_t>(shard_.specs.size()));
    encode();
    // Up front, so that a full disk is met before any data is moved. The size is final after finish().
    file_.reserve(align_up(layout_.file_size, route_.alignment));
  }

  std::uint64_t nbytes() const { return layout_.file_size; }
  const std::string& route() const { return route_.name; }
  NewFile& file() { return file_; }

  // Writes everything but the syncs.
  void write(Crew& crew, const std::function<bool(std::uint64_t)>& progress) {
    std::vector<WritePart> parts;
    for (const std::uint32_t number : layout_.order) {
      parts.push_back({layout_.offsets[number], shard_.specs[number].nbytes, shard_.origins[number]});
    }
    parts.insert(parts.begin(), {0, layout_.prefix.size(), {layout_.prefix.data(), {}}});
    add_zero_parts(parts, layout_.file_size);
    const auto batch = plan_write(file_, route_, parts, crew.settings().block_size);
    ChecksumCollector collector;
    if (options_.checksums) {
      batch->observe = [&collector](const Piece& piece, const std::byte* bytes) {
        collector.add(piece.owner, piece.offset, bytes, piece.nbytes);
      };
    }
    start_writing(crew, batch);
    const Stopwatch watch;
    wait_with_progress(*batch, [&](const Progress& now) { return progress(now.bytes_done); }, layout_.file_size, watch);
    if (options_.checksums) patch_checksums(collector.finish(parts.size()));
  }

  void finish() { file_.finish(layout_.file_size, options_.durable); }

 private:
  void encode() {
    const auto place = [this](std::span<const std::uint64_t> offsets) {
      return route_.direct ? choose_placement(shard_, offsets, std::max(route_.memory_alignment, 8u))
                           : safetensors::Placement{};
    };
    layout_ = safetensors::encode(shard_.specs, shard_.metadata, place);
  }

  void set_checksums(const std::vector<std::uint32_t>& checksums) {
    shard_.metadata[std::string(kChecksumKey)] = encode_checksums(checksums);
  }

  // The header was laid out with room for the checksums; now that they are known it is written again. `by_part` counts the
  // header as part 0 and then follows the order of offsets, as the format wants them.
  void patch_checksums(const std::vector<std::uint32_t>& by_part) {
    const auto first = by_part.begin() + 1;
    set_checksums(std::vector<std::uint32_t>(first, first + static_cast<std::ptrdiff_t>(shard_.specs.size())));
    encode();
    file_.use_buffered();
    file_.write(0, layout_.prefix.data(), layout_.prefix.size());
  }

  Shard shard_;
  const SaveOptions& options_;
  NewFile file_;
  WriteRoute route_;
  FilePlan layout_;
};

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
    if (++seen[spec.name] == 2) throw_argument("{}: tensor {} was added twice", state.path.native(), in_quotes(spec.name));
  }
}

void write_index(const std::filesystem::path& path, const std::string& text, bool durable) {
  NewFile file = NewFile::create(path);
  file.write(0, text.data(), text.size());
  file.finish(text.size(), durable);
  file.publish();
}

}  // namespace

Stats run_save(Writer::State& state, const std::function<void()>& all_read) {
  const Stopwatch watch;
  if (std::exchange(state.committed, true)) throw_argument("{}: this Writer was committed before", state.path.native());
  resolve_shared(state);
  ShardIndex index;
  std::vector<Shard> shards = make_shards(state, index);
  refuse_duplicate_names(state, index);

  std::vector<std::unique_ptr<ShardSave>> saves;
  std::uint64_t total = 0;
  for (Shard& shard : shards) {
    saves.push_back(std::make_unique<ShardSave>(std::move(shard), state.options));
    total += saves.back()->nbytes();
  }
  const Settings settings = decide_settings(state.options.io, total);
  Stats stats;
  {
    Crew crew(settings, host_pool(nullptr));
    std::uint64_t before = 0;
    for (const auto& save : saves) {
      save->write(crew, [&](std::uint64_t done) {
        return !state.options.progress || state.options.progress({before + done, total, watch.seconds()});
      });
      before += save->nbytes();
    }
    crew.stop();
    describe(crew, settings, stats);
  }
  if (all_read) all_read();

  const Stopwatch sync_watch;
  for (const auto& save : saves) save->finish();
  for (const auto& save : saves) save->file().publish();
  if (saves.size() > 1) {
    write_index(state.path.parent_path() / index_file_name(state.path.filename().native()),
                encode_shard_index(index, state.nbytes), state.options.durable);
  }
  if (state.options.durable) saves.front()->file().sync_directory();
  stats.sync_seconds = sync_watch.seconds();
  stats.bytes = state.nbytes;
  stats.tensors = state.specs.size();
  stats.path = saves.front()->route();
  const std::uint64_t moved = stats.bytes_direct + stats.bytes_buffered;
  stats.landing = stats.bytes_copied == moved ? "staged" : stats.bytes_copied * 20 < moved ? "straight" : "mixed";
  stats.reason = stats.path == "direct" ? "the filesystem takes direct writes" : "the filesystem refuses direct writes, or another way was asked for";
  stats.seconds = watch.seconds();
  return stats;
}

}  // namespace penstock
