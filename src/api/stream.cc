// TensorStream: batches of tensors are read ahead of their consumer, within a budget.
#include <algorithm>
#include <deque>
#include <exception>

#include "api/verify_records.h"
#include "api/views.h"
#include "base/error.h"

namespace penstock {
namespace {

constexpr double kForever = 3600;

// Some neighbouring tensors that land in one arena.
struct StreamBatch {
  FileSelection selection;
  Landed landed;
  std::shared_ptr<ReadBatch> reading;
  std::shared_ptr<ChecksumCollector> collector;  // when checksums are checked
  std::size_t next = 0;                          // tensor to hand out
};

// Cuts a selection into batches of at most `limit` bytes (or one tensor), never over two files.
std::deque<FileSelection> cut(const Selection& selection, std::uint64_t limit) {
  std::deque<FileSelection> batches;
  for (const FileSelection& file : selection.files) {
    std::uint64_t nbytes = 0;
    for (const TensorInfo* tensor : file.tensors) {
      const bool fits = !batches.empty() && batches.back().file == file.file && nbytes + tensor->nbytes <= limit;
      if (!fits) {
        batches.push_back({file.file, {}});
        nbytes = 0;
      }
      batches.back().tensors.push_back(tensor);
      nbytes += tensor->nbytes;
    }
  }
  return batches;
}

}  // namespace

struct TensorStream::State {
  State(std::shared_ptr<const Reader::State> reader_state, const LoadOptions& load_options)
      : reader(std::move(reader_state)), options(load_options), pool(host_pool(load_options.pool)) {
    const Selection selection = select_tensors(*reader, options.select);
    total = selection.nbytes;
    views.assign(selection.views.begin(), selection.views.end());
    for (const TensorInfo* view : views) total += view->nbytes;
    // Enough batches in the budget for the drive never to wait for the consumer.
    to_come = cut(selection, std::max<std::uint64_t>(options.max_buffer / 4, 1));
    settings = decide_settings(options.io, selection.nbytes);
    crew = std::make_unique<Crew>(settings, pool);
    if (options.cache == CachePolicy::kMap) options.cache = CachePolicy::kBuffered;
    if (!options.verify) return;
    require_intact_records(*reader, options.io);
    expected = reader->expected_checksums();
  }

  ~State() {
    for (const StreamBatch& batch : reading) batch.reading->abandon();
    crew.reset();
  }

  // Starts further batches while the budget lasts; there is always one under way.
  void read_ahead() {
    while (!to_come.empty()) {
      const std::uint64_t nbytes = to_come.front().nbytes();
      if (!reading.empty() && ahead + nbytes > options.max_buffer) return;
      FileSelection selection = std::move(to_come.front());
      to_come.pop_front();
      reading.push_back(begin(std::move(selection)));
      ahead += nbytes;
    }
  }

  StreamBatch begin(FileSelection selection) {
    StreamBatch batch;
    batch.landed = take_memory(selection, options.dtype, *pool);
    batch.reading = std::make_shared<ReadBatch>();
    batch.reading->populate = !batch.landed.arena->reused;
    batch.reading->memory.push_back(batch.landed.arena);
    batch.reading->luck = luck;
    if (options.verify) {
      batch.collector = std::make_shared<ChecksumCollector>();
      batch.reading->observe = [collector = batch.collector](const Piece& piece, const std::byte* bytes) {
        collector->add(piece.owner, piece.offset, bytes, piece.nbytes);
      };
    }
    const Arena& arena = *batch.landed.arena;
    const LandingChoice choice = choose_landing(options.landing, {arena.reused, arena.pages != nullptr},
                                                *selection.file, selection.nbytes(), settings.block_size);
    if (landing.reason.empty() || choice.way > landing.way) landing = choice;
    batch.reading->tasks.push_back(plan_file({selection.file, batch.landed.placement.segments},
                                             {options.cache, choice.way, options.verify}, settings.block_size));
    batch.reading->tasks.back().pages = arena.pages.get();
    for (const Placed& placed : batch.landed.placement.tensors) stats.tensors_moved += placed.moved;
    batch.selection = std::move(selection);
    start_reading(*crew, batch.reading);
    return batch;
  }

  // The first batch has landed: check it and let tensors out.
  void accept(const StreamBatch& batch) {
    batch.reading->rethrow();
    check_unchanged(batch.reading->tasks);
    if (!options.verify) return;
    const auto found = batch.collector->finish(batch.selection.tensors.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const TensorInfo& tensor = *batch.selection.tensors[i];
      const auto& wanted = expected[static_cast<std::size_t>(&tensor - reader->tensors.data())];
      if (wanted && *wanted != found[i]) {
        throw_format(batch.selection.file->path(), "tensor {} is corrupt: its CRC-32C is {:08x}, the file says {:08x}",
                     in_quotes(tensor.name), found[i], *wanted);
      }
    }
  }

  Tensor hand_out(StreamBatch& batch) {
    const std::size_t i = batch.next++;
    const TensorInfo& info = *batch.selection.tensors[i];
    Tensor tensor = make_tensor(info, batch.landed.placement.tensors[i], batch.landed.arena);
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
    const TensorInfo& view = *views.front();
    views.pop_front();
    Tensor tensor = load_view(*reader, view, options);
    stats.bytes += view.nbytes;
    ++stats.tensors;
    return tensor;
  }

  // As TensorStream::next_for().
  std::optional<Tensor> next_for(double seconds, bool* timed_out);

  // After an error there is nothing more to come: what is being read is given up, and every later call fails the same
  // way.
  void fail(std::exception_ptr error) {
    failure = std::move(error);
    for (const StreamBatch& batch : reading) batch.reading->abandon();
    to_come.clear();
  }

  void end() {
    if (ended) return;
    ended = true;
    crew->stop();
    describe(*crew, settings, stats);
    describe_landing(landing, "the bytes came from the page cache", stats);
    stats.seconds = watch.seconds();
  }

  const Stopwatch watch;
  const std::shared_ptr<const Reader::State> reader;
  LoadOptions options;
  const std::shared_ptr<HostPool> pool;
  Settings settings;
  std::unique_ptr<Crew> crew;
  std::deque<FileSelection> to_come;
  std::deque<const TensorInfo*> views;
  std::deque<StreamBatch> reading;  // oldest first
  std::vector<std::optional<std::uint32_t>> expected;
  std::uint64_t ahead = 0;  // bytes read or being read and not handed out
  std::uint64_t total = 0;
  bool accepted = false;  // the first batch was checked
  LandingChoice landing;  // of the batch that leaves the most open
  const std::shared_ptr<HugePageLuck> luck = std::make_shared<HugePageLuck>();
  bool ended = false;
  std::exception_ptr failure;
  Stats stats;
};

TensorStream::TensorStream(std::unique_ptr<State> state) : state_(std::move(state)) {}
TensorStream::TensorStream(TensorStream&&) noexcept = default;
TensorStream& TensorStream::operator=(TensorStream&&) noexcept = default;
TensorStream::~TensorStream() = default;

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
  if (!accepted) {
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
