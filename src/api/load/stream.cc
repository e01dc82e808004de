// TensorStream: batches of tensors are read ahead of their consumer, within a budget, or mapped one after the other.
#include <algorithm>
#include <deque>
#include <exception>

#include "api/load/map.h"
#include "api/load/reading.h"
#include "api/load/rows.h"
#include "api/load/views.h"
#include "base/error.h"

namespace penstock {
namespace {

constexpr double kForever = 3600;

// Some neighbouring tensors of one file, and the facts of that file.
struct Portion {
  FileSelection selection;
  std::size_t file = 0;  // its place in the selection
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
std::deque<Portion> cut(const Selection& selection, std::uint64_t limit, const StoredChecksums* checksums) {
  std::deque<Portion> portions;
  for (std::size_t number = 0; number < selection.files.size(); ++number) {
    const FileSelection& file = selection.files[number];
    std::vector<std::uint64_t> groups;
    if (checksums != nullptr) groups = check_groups(*checksums, file.number, file.tensors);
    std::uint64_t nbytes = 0;
    for (std::size_t i = 0; i < file.tensors.size(); ++i) {
      const TensorInfo* tensor = file.tensors[i];
      const bool belongs = i > 0 && !groups.empty() && groups[i] == groups[i - 1];
      if (i == 0 || (nbytes + tensor->nbytes > limit && !belongs)) {
        portions.push_back({{file.number, file.file, {}}, number});
        nbytes = 0;
      }
      portions.back().selection.tensors.push_back(tensor);
      nbytes += tensor->nbytes;
    }
  }
  return portions;
}

}  // namespace

struct TensorStream::State {
  State(std::shared_ptr<const Reader::State> reader_state, const LoadOptions& load_options, const RowRanges& rows)
      : reader(std::move(reader_state)),
        options(load_options),
        pool(host_pool(load_options.pool)),
        request(read_request(load_options)) {
    Selection selection = select_tensors(*reader, options.select);
    if (!rows.empty()) {
      if (options.verify) throw_argument("rows can't be verified: checksums are of whole tensors");
      narrowed = narrow(*reader, rows, selection);
    }
    facts = gather_facts(*reader, selection, request);
    mapping = decide_mapping(request, facts);
    total = selection.nbytes;
    nbytes = selection.nbytes;
    views.assign(selection.views.begin(), selection.views.end());
    for (const TensorInfo* view : views) total += view->nbytes;
    // Enough portions in the budget for the drive never to wait for the consumer.
    if (options.verify) checksums.emplace(*reader);
    to_come = cut(selection, std::max<std::uint64_t>(options.max_buffer / 4, 1), checksums ? &*checksums : nullptr);
  }

  ~State() { abandon(); }

  // Gives up what is being read.
  void abandon() {
    for (const StreamBatch& batch : reading) {
      if (batch.reading != nullptr) batch.reading->abandon();
    }
    session.reset();
  }

  // Starts further batches while the budget lasts; there is always one under way.
  void read_ahead() {
    while (!to_come.empty()) {
      const std::uint64_t size = to_come.front().selection.nbytes();
      if (!reading.empty() && (mapping.map || ahead + size > options.max_buffer)) return;
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
    WantedBytes wanted{selection.number, std::move(batch.placed.placement.segments), batch.placed.memory};
    for (const PlacedTensor& placed : batch.placed.placement.tensors) stats.tensors_moved += placed.moved;
    PieceObserver observe;
    if (options.verify) {
      // The pickle of a zip, which no tensor lies in, was checked when the file was opened.
      batch.verification = std::make_unique<Verification>(*reader, *checksums, selection.tensors);
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
    if (checksums) {
      // All of the record that it lies in: what is between its elements counts too.
      Verification verification(*reader, *checksums, {&view, 1});
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
  const ReadRequest request;
  std::deque<TensorInfo> narrowed;           // what is wanted of tensors that are not wanted whole
  std::vector<FileFacts> facts;              // of each file of the selection
  std::optional<StoredChecksums> checksums;  // when they are checked
  MapDecision mapping;
  std::deque<Portion> to_come;
  std::deque<const TensorInfo*> views;
  DeviceUse devices;
  std::deque<StreamBatch> reading;       // oldest first
  std::unique_ptr<ReadSession> session;  // behind what it reads into: its threads go first
  const std::shared_ptr<HugePageBudget> budget = std::make_shared<HugePageBudget>();
  std::uint64_t ahead = 0;   // bytes read or being read and not handed out
  std::uint64_t nbytes = 0;  // of all tensors but views
  std::uint64_t total = 0;
  bool accepted = false;  // the first batch was checked
  bool ended = false;
  std::exception_ptr failure;
  Stats mapped_stats;
  Stats stats;
};

TensorStream::TensorStream(std::unique_ptr<State> state) : state_(std::move(state)) {}
TensorStream::TensorStream(TensorStream&&) noexcept = default;
TensorStream& TensorStream::operator=(TensorStream&&) noexcept = default;
TensorStream::~TensorStream() = default;

void TensorStream::start() noexcept {
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

TensorStream Reader::stream(const LoadOptions& options, const RowRanges& rows) const {
  return TensorStream(std::make_unique<TensorStream::State>(state_, options, rows));
}

}  // namespace penstock
