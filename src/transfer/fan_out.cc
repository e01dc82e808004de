#include "transfer/fan_out.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace penstock {
namespace {

class FanOut {
 public:
  FanOut(std::size_t count, const std::function<void(std::size_t)>& work) : count_(count), work_(work) {}

  void run() noexcept {
    try {
      for (std::size_t number = next_++; number < count_; number = next_++) work_(number);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (error_ == nullptr) error_ = std::current_exception();
      next_ = count_;
    }
  }

  void rethrow() {
    if (error_ != nullptr) std::rethrow_exception(std::move(error_));
  }

 private:
  const std::size_t count_;
  const std::function<void(std::size_t)>& work_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

void fan_out(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& work) {
  FanOut pieces(count, work);
  std::vector<std::thread> others;
  try {
    for (std::size_t number = 1; number < std::min<std::size_t>(threads, count); ++number) {
      others.emplace_back([&pieces] { pieces.run(); });
    }
  } catch (const std::system_error&) {
    // Those that are there will do.
  }
  pieces.run();
  for (std::thread& thread : others) thread.join();
  pieces.rethrow();
}

}  // namespace penstock
