// TensorStream: batches of tensors are read ahead of their consumer, within a budget, or mapped one after the other.
#include <algorithm>
#include <deque>
#include <exception>

#include "api/load/map.h"
#include "api/load/narrow.h"
#include "api/load/reading.h"
#include "api/load/views.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/tuning.h"

namespace penstock {
namespace {

constexpr double kForever = 3600;

// Some neighbouring tensors of one file, and the facts of that file.
struct Portion {
  FileSelection selection;
  std::size_t file = 0;  // its place in the selection
  Verification::Scope scope = {};
};

// A portion whose tensors land in one arena.
struct StreamBatch {
  FileSelection selection;
  PlacedFile placed;
  std::shared_ptr<ReadBatch> reading;
  std::unique_ptr<Verification> verification;  // when checksums are checked
  std::vector<Tensor> mapped;                  // or what needs no reading
  std::size_t next = 0;                        // tensor to hand out
};

// Cuts a selection into portions of at most `limit` bytes (or one tensor), never over two files. Tensors that are
// checked together stay together.
std::deque<Portion> cut(const Selection& selection, std::uint64_t limit, const Proofs* proofs) {
  std::deque<Portion> portions;
  for (std::size_t number = 0; number < selection.files.size(); ++number) {
    const FileSelection& file = selection.files[number];
    std::vector<std::uint64_t> groups;
    if (proofs != nullptr && proofs->files[file.number].against == Against::kStored) {
      groups = check_groups(proofs->stored, file.number, file.tensors);
    }
    std::uint64_t nbytes = 0;
    std::uint64_t count = 0;  // of runs
    for (std::size_t i = 0; i < file.tensors.size(); ++i) {
      const TensorInfo* tensor = file.tensors[i];
      const PartRuns* const runs = file.runs_of(tensor);
      const std::uint64_t its_count = runs != nullptr ? runs->count() : 1;
      const bool belongs = i > 0 && !groups.empty() && groups[i] == groups[i - 1];
      const bool full = nbytes + tensor->nbytes > limit || count + its_count > tuning::kMostRuns;
      if (i == 0 || (full && !belongs)) {
        portions.push_back({{file.number, file.file, {}, file.scattered, file.largest_gap}, number});
        nbytes = count = 0;
      }
      portions.back().selection.tensors.push_back(tensor);
      nbytes += tensor->nbytes;
      count += its_count;
    }
  }
  return portions;
}

// Where all of a file with a seal is wanted, its portions are checked block by block, each from the end of the one
// before on, so that nothing between tensors is left out. Blocks at their edges are read for both. Portions of a few
// blocks are not worth that: their tensors are checked by themselves.
void choose_scopes(const Reader::State& state, const Proofs& proofs, const Selection& selection, std::uint64_t limit,
                   std::deque<Portion>& portions) {
  constexpr std::uint64_t kWorthwhileBlocks = 4;
  for (std::size_t i = 0; i < portions.size(); ++i) {
    const std::uint32_t number = portions[i].selection.number;
    const FileProof& proof = proofs.files[number];
    if (proof.against != Against::kSeal) continue;
    const bool is_first = i == 0 || portions[i - 1].file != portions[i].file;
    const bool is_last = i + 1 == portions.size() || portions[i + 1].file != portions[i].file;
    if (state.unpacked[number]) {  // of the file that it comes from everything, once
      portions[i].scope.range = ByteRange{0, is_first ? proof.seal->seal.size : 0};
    } else if ((limit >= kWorthwhileBlocks * proof.seal->seal.block_size || (is_first && is_last)) &&
               selection.has_all_of(state, number)) {
      portions[i].scope.range = ByteRange{is_first ? 0 : portions[i - 1].selection.hull().end,
                                          is_last ? proof.seal->seal.size : portions[i].selection.hull().end};
    }
  }
}

}  // namespace

struct TensorStream::State {
  State(std::shared_ptr<const Reader::State> reader_state, const LoadOptions& load_options)
      : reader(std::move(reader_state)),
        options(load_options),
        pool(host_pool(load_options.pool)),
        request(read_request(load_options)) {
    Selection selection = select_tensors(*reader, options.select);
    narrow(*reader, options, selection, narrowed);
    // Runs are put together: what is cached of them is copied.
    if (!narrowed.scattered.empty() && request.cache == CachePolicy::kAuto) request.cache = CachePolicy::kCopy;
    facts = gather_facts(*reader, selection, request);
    mapping = decide_mapping(request, facts);
    total = selection.nbytes;
    nbytes = selection.nbytes;
    views.assign(selection.views.begin(), selection.views.end());
    for (const TensorInfo* view : views) total += view->nbytes;
    // Enough portions in the budget for the drive never to wait for the consumer.
    if (options.verify != Verify::kOff) {
      proofs = std::make_shared<const Proofs>(*reader, options.verify);
      verified = all_selected(selection);
      const Verification refuses_what_has_no_proof(*reader, proofs, verified);
    }
    max_buffer = options.max_buffer;
    if (!mapping.map && !options.allocate) bound_memory(selection);
    const std::uint64_t limit = std::max<std::uint64_t>(max_buffer / 4, 1);
    to_come = cut(selection, limit, proofs.get());
    if (proofs) choose_scopes(*reader, *proofs, selection, limit, to_come);
  }

  ~State() { abandon(); }

  // The budget is for blocks, what is read ahead, and the portion that the consumer has begun with, a quarter of that.
  // Where nobody named it the consumer needs memory too, for tensors in its hands and what it makes of them.
  void bound_memory(const Selection& selection) {
    const Settings settings = decide_settings(options.io, nbytes);
    if (settings.budget.bytes == MemoryBudget::kUnbounded) return;
    const std::uint64_t room = settings.budget.bytes - std::min(settings.budget.bytes, settings.staging_bytes());
    max_buffer = std::min(max_buffer, settings.budget.asked ? room / 5 * 4 : room / 4);
    const TensorInfo* largest = nullptr;
    std::uint64_t size = 0;
    for (const TensorInfo* tensor : all_selected(selection)) {
      if (std::exchange(size, std::max(size, loaded_size(*tensor, options))) < size) largest = tensor;
    }
    if (largest == nullptr) return;
    const auto what = fmt::format("a stream's tensor {}", in_quotes(largest->name));
    const std::string& path = reader->files[largest->file]->path();
    settings.budget.require(path, what, size, settings.staging_bytes(), "a mapped load takes less");
  }

  // Gives up what is being read.
  void abandon() {
    for (const StreamBatch& batch : reading) {
      if (batch.reading != nullptr) batch.reading->abandon();
    }
    session.reset();
  }

  // Before anything is handed out.
  void check_whole_files() {
    if (!proofs || std::exchange(whole_files_checked, true)) return;
    const auto problems = find_problems_of_whole_files(*reader, *proofs, verified, options.progress);
    if (!problems.empty()) throw Error(ErrorKind::kFormat, problems.front());
  }

  // Starts further batches while the budget lasts; there is always one under way.
  void read_ahead() {
    check_whole_files();
    while (!to_come.empty()) {
      const std::uint64_t size = to_come.front().selection.nbytes();
      if (!reading.empty() && (mapping.map || ahead + size > max_buffer)) return;
      Portion portion = std::move(to_come.front());
      to_come.pop_front();
      reading.push_back(mapping.map ? map(std::move(portion)) : begin(std::move(portion)));
      ahead += size;
    }
  }

  StreamBatch map(Portion portion) {
    StreamBatch batch;
    const File& file = *portion.selection.file;
    file.check_unchanged();
    const auto mapped = map_range(file, portion.selection.hull());
    if (mapping.reason == MapReason::kPartlyCached) {
      complete(file, portion.selection.tensors, *mapped, [](std::uint64_t) {});
    }
    batch.mapped = map_tensors(file, portion.selection.tensors, mapped, *pool, mapped_stats);
    batch.selection = std::move(portion.selection);
    return batch;
  }

  StreamBatch begin(Portion portion) {
    StreamBatch batch;
    FileSelection& selection = portion.selection;
    batch.placed = take_memory(*reader, selection, options, devices);
    WantedBytes wanted{selection.number, std::move(batch.placed.placement.segments), batch.placed.memory,
                       selection.largest_gap};
    for (const PlacedTensor& placed : batch.placed.placement.tensors) stats.tensors_moved += placed.moved;
    PieceObserver observe;
    if (proofs) {
      // The pickle of a zip, which no tensor lies in, was checked when the file was opened.
      batch.verification = std::make_unique<Verification>(*reader, proofs, selection.tensors, portion.scope);
      const std::vector<Segment> further = batch.verification->further_segments(selection.number);
      wanted.segments.insert(wanted.segments.end(), further.begin(), further.end());
      std::stable_sort(wanted.segments.begin(), wanted.segments.end(),
                       [](const Segment& a, const Segment& b) { return a.offset < b.offset; });
      observe = [checks = batch.verification.get()](const Piece& piece, const std::byte* bytes) {
        checks->look(piece, bytes);
      };
    }
    open_session();
    std::vector<WantedBytes> all;
    all.push_back(std::move(wanted));
    // Of what is unpacked the file that it comes from is checked.
    for (std::uint32_t file = 0; batch.verification && file < reader->files.size(); ++file) {
      std::vector<Segment> further = batch.verification->further_segments(file);
      if (file != selection.number && !further.empty()) all.push_back({file, std::move(further), {}});
    }
    batch.reading = session->start(route_reads(*reader, std::move(all), request, {&facts[portion.file], 1}, nbytes,
                                               session->settings().block_size, budget, devices),
                                   std::move(observe));
    batch.selection = std::move(selection);
    return batch;
  }

  // With the first batch: where its memory is decides what bytes pass through.
  void open_session() {
    if (session != nullptr) return;
    start_gds(options, devices);
    Settings settings = decide_settings(options.io, nbytes, Direction::kRead, devices.passage());
    StagingFactory staging = devices.staging(settings, pool);
    session_forks = fork_count();
    session = std::make_unique<ReadSession>(std::move(settings), std::move(staging));
  }

  // The first batch has landed: check it and let tensors out.
  static void accept(const StreamBatch& batch) {
    batch.reading->rethrow();
    ReadSession::check_unchanged(*batch.reading);
    if (batch.verification != nullptr) batch.verification->check();
  }

  Tensor hand_out(StreamBatch& batch) {
    const std::size_t i = batch.next++;
    const TensorInfo& info = *batch.selection.tensors[i];
    Tensor tensor = batch.mapped.empty() ? make_tensor(info, batch.placed.placement.tensors[i], batch.placed.memory)
                                         : std::move(batch.mapped[i]);
    ahead -= info.nbytes;
    stats.bytes += info.nbytes;
    ++stats.tensors;
    if (batch.next == batch.selection.tensors.size()) {
      reading.pop_front();
      accepted = false;
    }
    return tensor;
  }

  // Views come last, one by one.
  Tensor next_view() {
    const TensorInfo* const view = views.front();
    views.pop_front();
    if (proofs) {
      // All of the record that it lies in: what is between its elements counts too.
      Verification verification(*reader, proofs, {&view, 1});
      LoadOptions quiet = options;
      quiet.progress = {};
      quiet.allocate = {};
      DeviceUse none;
      read_all(*reader, {}, quiet, none, {}, &verification);
      verification.check();
    }
    Tensor tensor = load_view(*reader, *view, options);
    stats.bytes += view->nbytes;
    ++stats.tensors;
    return tensor;
  }

  // As TensorStream::next_for().
  std::optional<Tensor> next_for(double seconds, bool* timed_out);

  // After an error there is nothing more to come: every later call fails the same way.
  void fail(std::exception_ptr error) {
    failure = std::move(error);
    abandon();
    to_come.clear();
  }

  void end() {
    if (ended) return;
    ended = true;
    if (mapping.map) {
      const std::uint64_t handed_out = stats.bytes;
      stats.bytes_buffered = mapped_stats.bytes_buffered;
      stats.tensors_moved = mapped_stats.tensors_moved;
      describe_mapping(mapping, nbytes, stats);
      stats.bytes = handed_out;
    } else {
      open_session();  // there may have been nothing to read
      session->finish(stats);
      devices.describe(stats);
    }
    stats.seconds = watch.seconds();
  }

  const Stopwatch watch;
  const std::shared_ptr<const Reader::State> reader;
  const LoadOptions options;
  const std::shared_ptr<HostPool> pool;
  ReadRequest request;
  NarrowedTensors narrowed;                 // what is wanted of tensors that are not wanted whole
  std::vector<FileFacts> facts;             // of each file of the selection
  std::shared_ptr<const Proofs> proofs;     // when something is checked
  std::vector<const TensorInfo*> verified;  // the same
  bool whole_files_checked = false;
  MapDecision mapping;
  std::deque<Portion> to_come;
  std::deque<const TensorInfo*> views;
  DeviceUse devices;
  std::deque<StreamBatch> reading;       // oldest first
  std::uint64_t session_forks = 0;       // as of the session's beginning
  std::unique_ptr<ReadSession> session;  // behind what it reads into: its threads go first
  const std::shared_ptr<HugePageBudget> budget = std::make_shared<HugePageBudget>();
  std::uint64_t max_buffer = 0;
  std::uint64_t ahead = 0;   // bytes read or being read and not handed out
  std::uint64_t nbytes = 0;  // of all tensors but views
  std::uint64_t total = 0;
  bool accepted = false;  // the first batch was checked
  bool ended = false;
  std::exception_ptr failure;
  Stats mapped_stats;
  Stats stats;
};

TensorStream::TensorStream(std::unique_ptr<State> state) : state_(of_this_process(std::move(state))) {}
TensorStream::TensorStream(TensorStream&&) noexcept = default;
TensorStream& TensorStream::operator=(TensorStream&&) noexcept = default;
TensorStream::~TensorStream() = default;

void TensorStream::start() noexcept {
  if (state_->session != nullptr) return;
  try {
    state_->read_ahead();
  } catch (...) {
    state_->fail(std::current_exception());
  }
}

std::optional<Tensor> TensorStream::next() {
  bool timed_out = true;
  std::optional<Tensor> tensor;
  while (timed_out) tensor = next_for(kForever, &timed_out);
  return tensor;
}

std::optional<Tensor> TensorStream::next_for(double seconds, bool* timed_out) {
  State& state = *state_;
  *timed_out = false;
  // Not as a failure of it, which would end what its threads do.
  if (state.session != nullptr) require_own_process(state.session_forks, "the stream");
  if (state.failure != nullptr) std::rethrow_exception(state.failure);
  try {
    return state.next_for(seconds, timed_out);
  } catch (...) {
    state.fail(std::current_exception());
    throw;
  }
}

std::optional<Tensor> TensorStream::State::next_for(double seconds, bool* timed_out) {
  read_ahead();
  if (reading.empty()) {
    if (!views.empty()) return next_view();
    end();
    return std::nullopt;
  }
  StreamBatch& batch = reading.front();
  if (!accepted && batch.reading != nullptr) {
    if (!batch.reading->wait_for(seconds)) {
      *timed_out = true;
      return std::nullopt;
    }
    accept(batch);
    accepted = true;
  }
  Tensor tensor = hand_out(batch);
  if (options.progress && !options.progress({stats.bytes, total, watch.seconds()})) {
    throw Error(ErrorKind::kCancelled, "cancelled");
  }
  return tensor;
}

const Stats& TensorStream::stats() const {
  return state_->stats;
}

TensorStream Reader::stream(const LoadOptions& options) const {
  return TensorStream(std::make_unique<TensorStream::State>(state_, options));
}

}  // namespace penstock
