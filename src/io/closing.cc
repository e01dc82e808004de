#include "io/closing.h"

#include <pthread.h>
#include <sys/stat.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "base/bytes.h"

namespace penstock {
namespace {

constexpr std::uint64_t kMuch = 128 * kMiB;
constexpr std::chrono::minutes kLongestWait{1};

class Closer {
 public:
  // Never destroyed: its thread may outlive main().
  static Closer& instance() {
    static Closer& closer = *new Closer();
    return closer;
  }

  void add(UniqueFd fd) {
    const std::lock_guard lock(mutex_);
    if (!running_) std::thread([this] { run(); }).detach();
    running_ = true;
    waiting_.push_back(std::move(fd));
    ++accepted_;
  }

  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLongestWait, [this, all = accepted_] { return closed_ >= all; });
  }

 private:
  Closer() { ::pthread_atfork(&before_fork, &after_fork, &after_fork_in_child); }

  void run() {
    std::unique_lock lock(mutex_);
    while (!waiting_.empty()) {
      UniqueFd next = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      next.reset();
      lock.lock();
      ++closed_;
      changed_.notify_all();
    }
    running_ = false;
  }

  static void before_fork() { instance().mutex_.lock(); }
  static void after_fork() { instance().mutex_.unlock(); }
  // The thread is the parent's; what it has not closed yet must not be kept alive from here.
  static void after_fork_in_child() {
    Closer& closer = instance();
    closer.waiting_.clear();
    closer.closed_ = closer.accepted_;
    closer.running_ = false;
    closer.mutex_.unlock();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<UniqueFd> waiting_;
  std::uint64_t accepted_ = 0;
  std::uint64_t closed_ = 0;
  bool running_ = false;
};

}  // namespace

bool frees_much(int fd) {
  constexpr std::uint64_t kUnit = 512;  // of st_blocks
  struct stat status {};
  return ::fstat(fd, &status) == 0 && static_cast<std::uint64_t>(status.st_blocks) * kUnit >= kMuch;
}

void close_in_background(UniqueFd fd) noexcept {
  try {
    Closer::instance().add(std::move(fd));
  } catch (...) {
    // No thread, or no memory: it is closed on the way out of here.
  }
}

void wait_for_closing() {
  Closer::instance().wait();
}

}  // namespace penstock
