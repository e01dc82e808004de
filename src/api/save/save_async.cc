// SaveJob: a save on a thread of its own.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "api/save/device_snapshot.h"
#include "api/save/save.h"
#include "api/save/snapshot.h"
#include "api/save/writer_state.h"
#include "base/error.h"
#include "base/fork.h"
#include "penstock/size.h"

namespace penstock {

struct SaveJob::State {
  explicit State(Writer writer_to_run, SaveAsyncOptions async_options)
      : writer(std::move(writer_to_run)), options(std::move(async_options)) {}

  // On the thread of the caller: what is queued on its streams by now comes first.
  void begin() {
    Writer::State& work = WriterAccess::state(writer);
    find_devices(work);
    wait_for_streams(work);
    if (!options.snapshot || !options.on_device) return;
    std::string reason;
    on_device = DeviceSnapshot::prepare(work, options.allocate, reason);
    snapshot_note = on_device != nullptr ? "; the snapshot is on the device"
                                         : fmt::format("; the snapshot is on the host: {}", reason);
  }

  void run() noexcept {
    try {
      Writer::State& work = WriterAccess::state(writer);
      // Names and overlaps are judged by the caller's memory, before it is copied.
      resolve_shared(work);
      work.options.shared = SharedTensors::kDuplicate;
      watch_progress(work);
      finish(save_steps(work), nullptr);
    } catch (...) {
      finish({}, std::current_exception());
    }
  }

  // What it held, snapshot included, is let go of before anybody is told that it is over.
  Stats save_steps(Writer::State& work) {
    Save save(work);
    std::optional<MemoryClaim> room = claim_snapshot(work);
    const bool snapshot = options.snapshot && (on_device != nullptr || room);
    save.prepare(snapshot && on_device == nullptr);
    if (snapshot) copy_tensors(save);
    room.reset();
    save.write();
    on_device.reset();
    set_staged();
    Stats result = save.publish();
    result.reason += snapshot_note;
    return result;
  }

  // Where it has none the tensors themselves are written, and are the caller's again when that is done.
  std::optional<MemoryClaim> claim_snapshot(const Writer::State& work) {
    if (!options.snapshot || on_device != nullptr) return std::nullopt;
    const Settings settings = decide_settings(work.options.io, work.nbytes, Direction::kWrite, work.devices.passage());
    auto room = settings.budget.claim(work.nbytes + settings.staging_bytes());
    if (!room) {
      snapshot_note +=
          fmt::format("; no snapshot: it takes {}, and {}", format_size(work.nbytes), settings.budget.source);
    }
    return room;
  }

  void copy_tensors(Save& save) {
    const Stopwatch watch;
    const auto check = [this] {
      if (cancelled) throw Error(ErrorKind::kCancelled, "cancelled");
    };
    check();
    Writer::State& work = WriterAccess::state(writer);
    settle_streams(work);
    if (on_device != nullptr) {
      on_device->take(save.files(), *host_pool(options.pool), check);
    } else {
      take_snapshot(save.files(), *host_pool(options.pool), work.options.io, work.devices, check);
      save.leave_devices();
    }
    forget_origins(work);  // nothing reads them any more
    save.add_phase("snapshot", watch.seconds());
    set_staged();
  }

  void watch_progress(Writer::State& work) {
    bytes_total = work.nbytes;
    work.options.progress = [this, user = work.options.progress](const Progress& now) {
      bytes_done = now.bytes_done;
      bytes_total = now.bytes_total;
      return !cancelled && (!user || user(now));
    };
  }

  void set_staged() {
    const std::lock_guard lock(mutex);
    staged = true;
    changed.notify_all();
  }

  void finish(Stats result, std::exception_ptr failure) noexcept {
    let_go();
    const std::lock_guard lock(mutex);
    stats = std::move(result);
    error = std::move(failure);
    staged = true;
    over = true;
    changed.notify_all();
  }

  // Whoever keeps a job that is over does not keep what it was given.
  void let_go() noexcept {
    Writer::State& work = WriterAccess::state(writer);
    on_device.reset();
    forget_origins(work);
    work.devices = {};
    work.streams.clear();
    work.options.progress = nullptr;
  }

  static void forget_origins(Writer::State& work) noexcept {
    for (AddedTensor& tensor : work.tensors) {
      tensor.origin = {};
      tensor.lanes = nullptr;
    }
  }

  bool is_here() const noexcept { return forks == fork_count(); }

  bool wait_until(const bool& flag, double seconds) {
    require_own_process(forks, "the save");
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return flag; });
  }

  void rethrow() const {
    const std::lock_guard lock(mutex);
    if (error != nullptr) std::rethrow_exception(error);
  }

  const std::uint64_t forks = fork_count();
  Writer writer;
  const SaveAsyncOptions options;
  std::unique_ptr<DeviceSnapshot> on_device;  // the memory for it
  std::string snapshot_note;                  // for Stats::reason
  std::atomic<bool> cancelled{false};
  std::atomic<std::uint64_t> bytes_done{0};
  std::atomic<std::uint64_t> bytes_total{0};
  mutable std::mutex mutex;
  std::condition_variable changed;
  bool staged = false;
  bool over = false;
  Stats stats;
  std::exception_ptr error;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  std::thread thread;
};

SaveJob::SaveJob(std::shared_ptr<State> state) : state_(std::move(state)) {}
SaveJob::SaveJob(SaveJob&&) noexcept = default;

SaveJob& SaveJob::operator=(SaveJob&& other) noexcept {
  SaveJob previous(std::move(*this));  // waits for its job
  state_ = std::move(other.state_);
  return *this;
}

SaveJob::~SaveJob() {
  if (state_ != nullptr && state_->is_here() && state_->thread.joinable()) state_->thread.join();
}

void SaveJob::staged() {
  while (!staged_for(3600)) continue;
}

bool SaveJob::staged_for(double seconds) {
  if (!state_->wait_until(state_->staged, seconds)) return false;
  state_->rethrow();
  return true;
}

Stats SaveJob::wait() {
  while (!wait_for(3600)) continue;
  state_->rethrow();
  return state_->stats;
}

bool SaveJob::wait_for(double seconds) {
  return state_->wait_until(state_->over, seconds);
}

bool SaveJob::done() const noexcept {
  if (!state_->is_here()) return true;  // there is nothing to wait for: wait() says why
  const std::lock_guard lock(state_->mutex);
  return state_->over;
}

Progress SaveJob::progress() const noexcept {
  const auto elapsed = std::chrono::steady_clock::now() - state_->started;
  return {state_->bytes_done, state_->bytes_total, std::chrono::duration<double>(elapsed).count()};
}

void SaveJob::cancel() noexcept {
  state_->cancelled = true;
}

SaveJob save_async(Writer writer, SaveAsyncOptions options) {
  auto state = of_this_process(std::make_unique<SaveJob::State>(std::move(writer), std::move(options)));
  state->begin();
  try {
    state->thread = std::thread([raw = state.get()] { raw->run(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::kIo, fmt::format("cannot start a thread: {}", error.what()), error.code().value());
  }
  return SaveJob(std::move(state));
}

}  // namespace penstock
