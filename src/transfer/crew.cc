#include "transfer/crew.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/fork.h"

namespace penstock {

namespace {

// For what the kernel may still write to after an engine broke down.
void keep_for_ever(std::shared_ptr<void> thing) {
  const std::lock_guard lock(process_mutex());
  static auto& things = *new std::vector<std::shared_ptr<void>>();  // outlives every thread
  things.push_back(std::move(thing));
}

}  // namespace

// A place for one job from its start to its end.
struct Crew::Slot {
  std::byte* staging = nullptr;
  std::unique_ptr<Job> job;
  bool copying = false;  // else transferring
};

class Crew::Worker {
 public:
  explicit Worker(Crew& crew) : crew_(crew), slots_(crew.settings_.depth_per_thread()) {
    for (std::size_t index = slots_.size(); index > 0; --index) free_.push_back(index - 1);
  }

  // Works until the crew stops (threads) or has nothing left (`until_empty`).
  void run(bool until_empty) noexcept {
    while (true) {
      collect_copies();
      while (!free_.empty()) {
        if (next_ == nullptr) next_ = crew_.take(!until_empty && under_way() == 0);
        if (next_ == nullptr || !start_next()) break;
      }
      if (under_way() == 0 && next_ == nullptr) break;
      if (under_way() == 0) {
        staging_->wait();
        continue;
      }
      if (transferring_ > 0) {
        reap();
      } else {
        slots_[copying_.front()].job->wait_for_copy();
      }
    }
    if (queue_ != nullptr) {
      crew_.counters_.requests += queue_->requests();
      crew_.counters_.resumed += queue_->resumed();
    }
  }

 private:
  std::size_t under_way() const { return slots_.size() - free_.size(); }
  int staging_index() const { return registered_ ? 0 : -1; }

  // False when there is no staging block for it now: then it stays the next one.
  bool start_next() noexcept {
    std::byte* staging = nullptr;
    std::exception_ptr error;
    const bool abandoned = next_->abandoned();
    try {
      if (!abandoned) prepare();
      if (!abandoned && next_->needs_staging()) {
        staging = staging_->take();
        if (staging == nullptr) return false;
      }
    } catch (...) {
      error = std::current_exception();
    }
    std::unique_ptr<Job> job = std::move(next_);
    // Not within the handler, which would hold the error beyond the moment that its reader has it.
    if (abandoned || error != nullptr) {
      job->end(std::move(error));
      return true;
    }
    start(std::move(job), staging);
    return true;
  }

  void start(std::unique_ptr<Job> job, std::byte* staging) noexcept {
    const std::size_t index = free_.back();
    free_.pop_back();
    slots_[index].job = std::move(job);
    slots_[index].staging = staging;
    go_on(index, [&](Job& started, Transfer& transfer) { return started.start(staging, staging_index(), transfer); });
  }

  // Asks the job of a slot for its next step by `ask`, and takes it.
  template <typename Ask>
  void go_on(std::size_t index, const Ask& ask) noexcept {
    Slot& slot = slots_[index];
    std::exception_ptr error;
    NextStep next = NextStep::kEnd;
    try {
      Transfer transfer;
      next = ask(*slot.job, transfer);
      if (next == NextStep::kTransfer) {
        transfer.request.tag = index;
        queue_->push(transfer);
        ++transferring_;
      } else if (next == NextStep::kCopy) {
        slot.copying = true;
        copying_.push_back(index);
      } else if (next == NextStep::kRestart) {
        next_ = release(index);
      }
    } catch (...) {
      error = std::current_exception();
      next = NextStep::kEnd;
    }
    if (next == NextStep::kEnd) finish(index, std::move(error));
  }

  std::unique_ptr<Job> release(std::size_t index) noexcept {
    slots_[index].copying = false;
    if (slots_[index].staging != nullptr) staging_->give_back(std::exchange(slots_[index].staging, nullptr));
    free_.push_back(index);
    return std::move(slots_[index].job);
  }

  void finish(std::size_t index, std::exception_ptr error) noexcept { release(index)->end(std::move(error)); }

  // Goes on with the jobs whose copies are through. A worker's copies pass in the order in which they were started.
  void collect_copies() noexcept {
    while (!copying_.empty() && slots_[copying_.front()].job->copy_is_done()) {
      const std::size_t index = copying_.front();
      copying_.pop_front();
      slots_[index].copying = false;
      go_on(index,
            [&](Job& job, Transfer& transfer) { return job.copied(slots_[index].staging, staging_index(), transfer); });
    }
  }

  void reap() noexcept {
    Finished finished;
    std::exception_ptr broken;
    try {
      finished = queue_->wait();
    } catch (...) {
      broken = std::current_exception();
    }
    if (broken != nullptr) return break_down(broken);
    --transferring_;
    const auto index = static_cast<std::size_t>(finished.tag);
    const bool failed = finished.error_number != 0 || finished.ended_early;
    go_on(index, [&](Job& job, Transfer& transfer) {
      std::byte* const staging = slots_[index].staging;
      if (failed) return job.failed(finished, staging, staging_index(), transfer);
      return job.abandoned() ? NextStep::kEnd : job.transferred(staging);
    });
  }

  // One for each reader: threads that share an error also share the moment of its end.
  static std::exception_ptr copy_of(const std::exception_ptr& error) noexcept {
    try {
      std::rethrow_exception(error);
    } catch (const Error& known) {
      return std::make_exception_ptr(Error(known.kind(), std::string(known.what()), known.error_number()));
    } catch (...) {
      return std::current_exception();
    }
  }

  // The engine is gone with requests in flight. The kernel may still write to their memory, so nothing that it reaches
  // is ever given back: the staging blocks, and what the jobs hold.
  void break_down(const std::exception_ptr& error) noexcept {
    for (std::size_t index = 0; index < slots_.size(); ++index) {
      if (slots_[index].job == nullptr) continue;
      if (slots_[index].copying) slots_[index].job->wait_for_copy();
      slots_[index].job->end(copy_of(error));
      keep_for_ever(std::move(slots_[index].job));
      slots_[index].copying = false;
      slots_[index].staging = nullptr;
      free_.push_back(index);
    }
    transferring_ = 0;
    copying_.clear();
    keep_for_ever(std::move(staging_));
    keep_for_ever(std::move(queue_));
    keep_for_ever(std::move(engine_));
  }

  // Makes the engine and the staging blocks when the first job needs them, on the thread that will use them.
  void prepare() {
    if (queue_ != nullptr) return;
    const Settings& settings = crew_.settings_;
    staging_ = crew_.make_staging_(slots_.size(), settings.block_size);
    const auto depth = static_cast<unsigned>(slots_.size());
    engine_ = settings.make_engine(depth);
    if (engine_ == nullptr) throw Error(ErrorKind::kIo, "no I/O engine could be started");
    const iovec whole{staging_->stretch().data(), staging_->stretch().size()};
    registered_ = settings.register_staging && whole.iov_len > 0 && engine_->register_buffers({&whole, 1});
    queue_ = std::make_unique<RequestQueue>(*engine_, depth);
    crew_.set_backend(engine_->name());
  }

  Crew& crew_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_;
  std::deque<std::size_t> copying_;  // in the order in which their copies were started
  std::size_t transferring_ = 0;
  std::unique_ptr<Job> next_;  // taken, and waiting for a staging block; null while a job is started
  std::shared_ptr<Staging> staging_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RequestQueue> queue_;
  bool registered_ = false;
};

Crew::Crew(Settings settings, StagingFactory staging)
    : settings_(std::move(settings)), make_staging_(std::move(staging)) {}

void Crew::stop() {
  std::deque<std::unique_ptr<Job>> abandoned;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    abandoned.swap(waiting_);
  }
  work_.notify_all();
  for (const auto& job : abandoned) {
    job->end(std::make_exception_ptr(Error(ErrorKind::kCancelled, "stopped before it was done")));
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

std::string Crew::backend() const {
  const std::lock_guard lock(mutex_);
  return backend_;
}

void Crew::set_backend(std::string_view name) {
  const std::lock_guard lock(mutex_);
  backend_ = name;
}

void Crew::add(std::vector<std::unique_ptr<Job>> jobs) {
  // Before any job is queued: when no thread can be had, none may hold the caller's memory.
  start_threads();
  {
    const std::lock_guard lock(mutex_);
    std::move(jobs.begin(), jobs.end(), std::back_inserter(waiting_));
  }
  if (settings_.threads == 0) return Worker(*this).run(/*until_empty=*/true);
  work_.notify_all();
}

void Crew::start_threads() {
  try {
    while (threads_.size() < settings_.threads) {
      threads_.emplace_back([this] { Worker(*this).run(/*until_empty=*/false); });
    }
  } catch (const std::system_error& error) {
    // Fewer than wanted will do.
    if (threads_.empty()) {
      throw Error(ErrorKind::kIo, fmt::format("cannot start a thread: {}", error.what()), error.code().value());
    }
  }
}

std::unique_ptr<Job> Crew::take(bool may_wait) {
  std::unique_lock lock(mutex_);
  if (may_wait) work_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
  if (waiting_.empty()) return nullptr;
  auto job = std::move(waiting_.front());
  waiting_.pop_front();
  return job;
}

}  // namespace penstock
