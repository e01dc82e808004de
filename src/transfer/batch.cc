#include "transfer/batch.h"

#include <chrono>
#include <utility>

namespace penstock {

void Batch::expect(std::size_t jobs) {
  const std::lock_guard lock(mutex_);
  left_ += jobs;
}

void Batch::job_ended(std::exception_ptr error, std::uint64_t bytes) noexcept {
  if (error != nullptr) abandon();
  bytes_done_.fetch_add(bytes, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  if (error != nullptr && error_ == nullptr) error_ = std::move(error);
  if (--left_ == 0) done_.notify_all();
}

bool Batch::wait_for(double seconds) {
  std::unique_lock lock(mutex_);
  return done_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return left_ == 0; });
}

void Batch::rethrow() const {
  const std::lock_guard lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void Batch::forget_error() noexcept {
  const std::lock_guard lock(mutex_);
  error_ = nullptr;
}

}  // namespace penstock
