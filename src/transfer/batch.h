// Batch: jobs that belong together, the wait for them, and the first error among them.
//
// Jobs hold their batch by std::shared_ptr; a waiter may go away at any time. Safe from several threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>

namespace penstock {

class Batch {
 public:
  virtual ~Batch() = default;

  // Before the jobs are given to a crew.
  void expect(std::size_t jobs);

  // A job has ended; the first error makes the others give up. It is taken over whole, so that the waiter, who reads
  // it, is also the one that destroys it.
  void job_ended(std::exception_ptr error, std::uint64_t bytes) noexcept;

  bool abandoned() const noexcept { return abandoned_.load(std::memory_order_relaxed); }
  void abandon() noexcept { abandoned_.store(true, std::memory_order_relaxed); }

  std::uint64_t bytes_done() const noexcept { return bytes_done_.load(std::memory_order_relaxed); }

  // True when every job has ended, waiting at most so long.
  bool wait_for(double seconds);

  // Throws the first error, if there was one. After wait_for() returned true.
  void rethrow() const;

  // Lets go of it, on the waiter's thread.
  void forget_error() noexcept;

 private:
  std::atomic<bool> abandoned_{false};
  std::atomic<std::uint64_t> bytes_done_{0};
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::size_t left_ = 0;
  std::exception_ptr error_;
};

}  // namespace penstock
