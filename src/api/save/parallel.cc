#include "penstock/parallel.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "api/save/edges.h"
#include "api/save/file_layout.h"
#include "api/save/file_writer.h"
#include "api/save/set_content.h"
#include "api/save/set_publish.h"
#include "api/save/writer_state.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/tuning.h"
#include "memory/arena.h"
#include "transfer/session.h"

namespace penstock {
namespace {

Writer::State& judged(Writer& writer) {
  Writer::State& work = WriterAccess::state(writer);
  work.begin_commit();
  find_devices(work);
  resolve_shared(work);
  return work;
}

// One file of the save. Immovable: the layout looks into the content.
struct PartFile {
  PartFile(FileContent file_content, const SaveOptions& save_options, std::uint32_t first, std::uint64_t begins)
      : content(std::move(file_content)), layout(content, save_options), first_tensor(first), base(begins) {}

  const FileContent content;
  const FileLayout layout;
  const std::uint32_t first_tensor;  // its tensors count from here, in checksums that processes exchange
  const std::uint64_t base;          // where it begins if the files lie one behind the other, as shares are cut
  std::optional<FileWriter> writer;

  std::uint64_t end() const { return base + layout.file_size(); }
  // The same in every process, whatever its route is.
  std::uint64_t alignment() const { return std::max<std::uint64_t>(writer->alignment(), 4 * kKiB); }
};

// The whole pages of tensors that lie in `share`, in the order of the layout; empty where none do.
std::vector<WritePart> parts_within(const PartFile& file, ByteRange share) {
  std::vector<WritePart> mine = file.layout.interior_parts(file.alignment());
  for (WritePart& part : mine) {
    const std::uint64_t begin = std::max(file.base + part.offset, share.begin);
    const std::uint64_t end = std::min(file.base + part.offset + part.nbytes, share.end);
    part = begin < end ? cut_part(part, begin - file.base, end - file.base) : WritePart{part.offset, 0, part.origin};
  }
  return mine;
}

std::uint64_t nbytes_of(std::span<const WritePart> parts) {
  std::uint64_t nbytes = 0;
  for (const WritePart& part : parts) nbytes += part.nbytes;
  return nbytes;
}

}  // namespace

struct ParallelSave::State {
  explicit State(Writer collected) : writer(std::move(collected)), work(judged(writer)) {
    SetContent set = assign_to_files(work);
    index = std::move(set.index);
    std::uint32_t first = 0;
    std::uint64_t base = 0;
    for (FileContent& content : set.files) {
      const auto count = static_cast<std::uint32_t>(content.specs.size());
      files.push_back(std::make_unique<PartFile>(std::move(content), work.options, first, base));
      first += count;
      base = align_up(files.back()->end(), tuning::kBlockSize);
    }
  }

  const std::string& path() const { return work.path.native(); }

  void require_unopened() const {
    if (files.front()->writer) throw_argument("{}: the file is open already", path());
  }
  void require_opened() const {
    if (!files.back()->writer) throw_argument("{}: create() or join() comes first", path());
  }
  // Shares pass through staging blocks: where tensors lie in memory differs between processes.
  void open(PartFile& file, NewFile new_file) {
    file.writer.emplace(std::move(new_file), WriteRequest{work.options.method, Landing::kStaged},
                        file.layout.file_size());
  }

  std::vector<ShareChecksum> write_share(PartFile& file, ByteRange share, Crew& crew, const FileWriter::Watch& watch);
  std::vector<std::uint32_t> join(const PartFile& file, std::span<const ShareChecksum> shares, ChecksumKind kind,
                                  std::span<const WritePart> interiors, Crew& crew);
  void complete(PartFile& file, std::span<const ShareChecksum> checksums, Crew& crew);
  void give_names();
  // Tensors are read after what is queued on the caller's streams now.
  std::unique_ptr<Crew> make_crew(std::uint64_t nbytes);
  // Of the crew that was made first: the shares are most of the file.
  void describe_devices() {
    if (stats.device.empty()) work.devices.describe(stats);
  }

  Writer writer;
  Writer::State& work;
  ShardIndex index;
  std::vector<std::unique_ptr<PartFile>> files;
  Stopwatch watch;
  Stats stats;
};

std::vector<ShareChecksum> ParallelSave::State::write_share(PartFile& file, ByteRange share, Crew& crew,
                                                            const FileWriter::Watch& watch_share) {
  const std::vector<WritePart> mine = parts_within(file, share);
  const auto kind = file.layout.wanted_checksums();
  const std::span<const std::uint32_t> order = file.layout.order();
  ChecksumCollector collector;
  PieceObserver observe;
  if (kind) {
    observe = [&](const Piece& piece, const std::byte* bytes) {
      collector.add(*kind, order[piece.owner], piece.offset, bytes, piece.nbytes);
    };
  }
  file.writer->write(crew, mine, std::move(observe), watch_share);
  std::vector<ShareChecksum> found;
  const auto checksums = collector.finish(file.content.specs.size());
  for (std::size_t i = 0; kind && i < mine.size(); ++i) {
    if (mine[i].nbytes == 0) continue;
    found.push_back({file.first_tensor + order[i], checksums[order[i]], mine[i].offset, mine[i].nbytes});
  }
  return found;
}

// The checksum of each tensor of a file, out of those of its shares and of its edges.
std::vector<std::uint32_t> ParallelSave::State::join(const PartFile& file, std::span<const ShareChecksum> shares,
                                                     ChecksumKind kind, std::span<const WritePart> interiors,
                                                     Crew& crew) {
  ChecksumCollector collector;
  std::vector<std::uint64_t> covered(file.content.specs.size());
  for (const ShareChecksum& share : shares) {
    if (share.tensor < file.first_tensor || share.tensor - file.first_tensor >= covered.size()) continue;
    const std::uint32_t tensor = share.tensor - file.first_tensor;
    covered[tensor] += share.nbytes;
    collector.add_known(kind, tensor, share.offset, share.checksum, share.nbytes);
  }
  for (std::size_t i = 0; i < interiors.size(); ++i) {
    const std::uint32_t tensor = file.layout.order()[i];
    if (covered[tensor] == interiors[i].nbytes) continue;
    throw_argument("{}: tensor {}: of {} bytes checksums came for {}", file.content.path.native(),
                   in_quotes(file.content.specs[tensor].name), interiors[i].nbytes, covered[tensor]);
  }
  add_edges(file.content, file.layout, file.alignment(), crew, collector);
  return collector.finish(file.content.specs.size());
}

// Writes what lies between the tensors' pages of one file, and syncs it.
void ParallelSave::State::complete(PartFile& file, std::span<const ShareChecksum> checksums, Crew& crew) {
  const std::vector<WritePart> interiors = file.layout.interior_parts(file.alignment());
  const auto kind = file.layout.wanted_checksums();
  const FileLayout known =
      kind ? file.layout.with_checksums(join(file, checksums, *kind, interiors, crew)) : file.layout;
  file.writer->write(crew, without(known.all_parts(), interiors), {}, [](std::uint64_t) { return true; });
}

void ParallelSave::State::give_names() {
  std::optional<NewFile> index_file;
  if (files.size() > 1) index_file.emplace(NewFile::create(index_path_of(work)));
  std::vector<NewFile*> named;
  for (const auto& file : files) named.push_back(&file->writer->file());
  publish_files({work.path, work.options.durable}, named, index, index_file, work.nbytes);
}

std::unique_ptr<Crew> ParallelSave::State::make_crew(std::uint64_t nbytes) {
  require_opened();
  wait_for_streams(work);
  settle_streams(work);
  work.devices.start_gds(work.options.gds, "");
  for (const auto& file : files) file->writer->use_gds(work.devices.gds());
  const Settings settings = decide_settings(work.options.io, nbytes, Direction::kWrite, work.devices.passage());
  return std::make_unique<Crew>(settings, work.devices.staging(settings, host_pool(nullptr)));
}

ParallelSave::ParallelSave(Writer writer) : state_(of_this_process(std::make_unique<State>(std::move(writer)))) {}
ParallelSave::ParallelSave(ParallelSave&&) noexcept = default;
ParallelSave& ParallelSave::operator=(ParallelSave&&) noexcept = default;
ParallelSave::~ParallelSave() = default;

std::uint64_t ParallelSave::fingerprint() const noexcept {
  std::uint64_t mixed = 0;
  for (const auto& file : state_->files) mixed = mixed * 0x100000001B3 + file->layout.fingerprint();
  return mixed;
}

// The names of several files stand behind one another, with what no name contains between them.
std::string ParallelSave::create() {
  State& state = *state_;
  state.require_unopened();
  clear_leftovers_of(state.work.path);
  std::string names;
  for (const auto& file : state.files) {
    NewFile made = NewFile::create_named(file->content.path);
    names += (names.empty() ? "" : "/") + made.temporary();
    state.open(*file, std::move(made));
    file->writer->reserve(file->layout.file_size());
  }
  return names;
}

void ParallelSave::join(const std::string& temporaries) {
  State& state = *state_;
  state.require_unopened();
  const auto count = static_cast<std::size_t>(std::count(temporaries.begin(), temporaries.end(), '/')) + 1;
  if (count != state.files.size()) {
    throw_argument("{}: {} temporary files were made, and there are {} to be written", state.path(), count,
                   state.files.size());
  }
  std::size_t begin = 0;
  for (const auto& file : state.files) {
    const std::size_t end = std::min(temporaries.find('/', begin), temporaries.size());
    state.open(*file, NewFile::join(file->content.path, temporaries.substr(begin, end - begin)));
    begin = end + 1;
  }
}

std::vector<ShareChecksum> ParallelSave::write(unsigned rank, unsigned count) {
  if (count == 0 || rank >= count) throw_argument("share {} of {}: there is no such share", rank, count);
  State& state = *state_;
  const SaveOptions& options = state.work.options;
  const std::uint64_t all = state.files.back()->end();
  const std::uint64_t step = align_up((all + count - 1) / count, tuning::kBlockSize);
  const std::uint64_t share_size = std::min(step, all);
  const ByteRange share{rank * step, (rank + 1) * step};
  const std::unique_ptr<Crew> crew = state.make_crew(share_size);
  std::vector<ShareChecksum> found;
  std::uint64_t done_before = 0;
  for (const auto& file : state.files) {
    if (file->base >= share.end || file->end() <= share.begin) continue;
    const auto more = state.write_share(*file, share, *crew, [&](std::uint64_t done) {
      return !options.progress || options.progress({done_before + done, share_size, state.watch.seconds()});
    });
    found.insert(found.end(), more.begin(), more.end());
    done_before += nbytes_of(parts_within(*file, share));
    if (options.durable) file->writer->file().sync();
  }
  crew->stop();
  describe_crew(*crew, state.stats);
  state.describe_devices();
  return found;
}

Stats ParallelSave::commit(std::span<const ShareChecksum> checksums) {
  State& state = *state_;
  const SaveOptions& options = state.work.options;
  std::unique_ptr<Crew> crew = state.make_crew(tuning::kSmallTransfer);
  for (const ShareChecksum& share : checksums) {
    if (share.tensor >= state.work.tensors.size()) throw_argument("{}: a checksum of no tensor", state.path());
  }
  for (const auto& file : state.files) state.complete(*file, checksums, *crew);
  crew.reset();
  for (const auto& file : state.files) {
    file->writer->finish(file->layout.file_size(), options.durable, [] { return true; });
  }
  state.give_names();
  state.describe_devices();
  Stats stats = state.stats;
  stats.bytes = state.work.nbytes;
  stats.tensors = state.work.tensors.size();
  stats.path = state.files.front()->writer->route().direct ? "direct" : "buffered";
  stats.landing = "staged";
  stats.reason = "several processes wrote their shares";
  stats.seconds = state.watch.seconds();
  return stats;
}

}  // namespace penstock
