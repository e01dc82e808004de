#include "base/later.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

namespace penstock {
namespace {

class Worker {
 public:
  void add(Chore chore, Clock::time_point when, std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({chore, ++accepted_, when, std::move(work)});
    try {
      if (!running_) std::thread([this] { run(); }).detach();
    } catch (...) {
      waiting_.pop_back();
      throw;
    }
    running_ = true;
    added_.notify_one();
  }

  bool wait(Chore chore, Clock::duration longest) {
    std::unique_lock lock(mutex_);
    const auto is_asked_for = [chore, last = accepted_](const Job& job) {
      return job.chore == chore && job.number <= last;
    };
    return done_.wait_for(lock, longest, [&] {
      return std::none_of(waiting_.begin(), waiting_.end(), is_asked_for) &&
             std::none_of(current_.begin(), current_.end(), is_asked_for);
    });
  }

  // Across fork(). Cooling holds a pool's lock, which a child could never have; closing takes long, and holds none.
  void lock() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return current_.empty() || current_.front().chore != Chore::kCooling; });
    lock.release();
  }
  void unlock() { mutex_.unlock(); }
  // In a child, which has no such thread.
  void drop() { waiting_.clear(); }

 private:
  struct Job {
    Chore chore;
    std::uint64_t number;
    Clock::time_point when;
    std::function<void()> work;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (!waiting_.empty()) {
      const auto next = std::min_element(waiting_.begin(), waiting_.end(),
                                         [](const Job& a, const Job& b) { return a.when < b.when; });
      if (const auto when = next->when; when > Clock::now()) {
        added_.wait_until(lock, when);
        continue;
      }
      current_.splice(current_.end(), waiting_, next);
      lock.unlock();
      current_.front().work();
      current_.front().work = {};
      lock.lock();
      current_.clear();
      done_.notify_all();
    }
    running_ = false;
  }

  std::mutex mutex_;
  std::condition_variable added_;
  std::condition_variable done_;
  std::list<Job> waiting_;
  std::list<Job> current_;  // at most one
  std::uint64_t accepted_ = 0;
  bool running_ = false;
};

// Never destroyed: its thread may outlive main().
Worker*& worker() {
  static Worker* current = [] {
    ::pthread_atfork([] { worker()->lock(); }, [] { worker()->unlock(); },
                     [] {
                       // The old one's mutex is locked, and its conditions have waiters that are not here.
                       worker()->drop();
                       worker() = new Worker();
                     });
    return new Worker();
  }();
  return current;
}

}  // namespace

void do_later(Chore chore, Clock::time_point when, std::function<void()> work) {
  worker()->add(chore, when, std::move(work));
}

bool wait_for(Chore chore, Clock::duration longest) {
  return worker()->wait(chore, longest);
}

}  // namespace penstock
