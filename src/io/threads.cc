// The thread-pool backend: preadv2/pwritev2 on as many threads as requests may be in flight.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "io/blocking.h"
#include "io/engine.h"

namespace penstock {
namespace {

constexpr unsigned kMaxThreads = 64;

class ThreadsEngine final : public Engine {
 public:
  explicit ThreadsEngine(unsigned depth) : max_threads_(std::clamp(depth, 1u, kMaxThreads)) {}

  ThreadsEngine(const ThreadsEngine&) = delete;
  ThreadsEngine& operator=(const ThreadsEngine&) = delete;

  // Requests in flight are finished first: their buffers belong to the caller.
  ~ThreadsEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string_view name() const noexcept override { return "threads"; }
  Backend kind() const noexcept override { return Backend::kThreads; }
  bool register_buffers(std::span<const iovec>) override { return false; }

  int submit(const IoRequest& request) override {
    bool all_busy = false;
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(request);
      all_busy = waiting_.size() > idle_;
    }
    if (all_busy && threads_.size() < max_threads_ && !start_thread() && threads_.empty()) return run_one_here();
    work_.notify_one();
    return 0;
  }

  int wait(std::span<IoCompletion> completions) override {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return !completed_.empty(); });
    const std::size_t count = std::min(completions.size(), completed_.size());
    std::copy_n(completed_.begin(), count, completions.begin());
    completed_.erase(completed_.begin(), completed_.begin() + static_cast<std::ptrdiff_t>(count));
    return static_cast<int>(count);
  }

 private:
  // False where the system allows no more threads; those that exist do the work then.
  bool start_thread() {
    try {
      threads_.emplace_back([this] { run(); });
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  int run_one_here() {
    const IoRequest request = waiting_.front();
    waiting_.pop_front();
    completed_.push_back({request.tag, run_blocking(request)});
    return 0;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      ++idle_;
      work_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      --idle_;
      if (waiting_.empty()) return;
      const IoRequest request = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const std::int64_t result = run_blocking(request);
      lock.lock();
      completed_.push_back({request.tag, result});
      done_.notify_one();
    }
  }

  const unsigned max_threads_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::deque<IoRequest> waiting_;
  std::deque<IoCompletion> completed_;
  std::size_t idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Engine> make_threads_engine(unsigned depth) {
  return std::make_unique<ThreadsEngine>(depth);
}

}  // namespace penstock
