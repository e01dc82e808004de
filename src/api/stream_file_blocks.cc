#include "api/stream_file_blocks.h"

#include <cstring>
#include <utility>

#include "base/error.h"

namespace penstock {

class StreamBlocks::WriteJob final : public Job {
 public:
  WriteJob(std::shared_ptr<StreamBlocks> blocks, const StreamWrite& write)
      : blocks_(std::move(blocks)), write_(write), borrows_(write.source != nullptr) {}

  bool start(std::byte*, int, Transfer& transfer) override {
    if (borrows_) copy();
    const Target& target = blocks_->target_;
    transfer.minimum = static_cast<std::uint32_t>(write_.length);
    transfer.alignment = target.alignment;
    transfer.request.operation = IoRequest::Operation::kWrite;
    transfer.request.fd = target.fd;
    transfer.request.data = write_.block;
    transfer.request.length = static_cast<std::uint32_t>(write_.length);
    transfer.request.offset = write_.offset;
    transfer.request.flags = target.flags;
    return true;
  }

  void finish(std::byte*) override { written_ = write_.payload; }

  std::exception_ptr failure(const Finished& finished) const override {
    const std::string what = describe_failure(finished, IoRequest::Operation::kWrite);
    return std::make_exception_ptr(Error(errno_kind(finished.error_number),
                                         fmt::format("{}: {}", blocks_->target_.path, what), finished.error_number));
  }

  void over(std::exception_ptr error) noexcept override {
    if (std::exchange(borrows_, false)) blocks_->copied();
    blocks_->over(write_.block, written_, error);
  }

  bool abandoned() const noexcept override { return blocks_->abandoned(); }

 private:
  void copy() {
    const Stopwatch watch;
    std::memcpy(write_.block, write_.source, write_.payload);
    blocks_->count_fill(watch.seconds());
    borrows_ = false;
    blocks_->copied();
  }

  const std::shared_ptr<StreamBlocks> blocks_;  // and the block's memory, whatever becomes of the file
  const StreamWrite write_;
  bool borrows_;
  std::uint64_t written_ = 0;
};

StreamBlocks::StreamBlocks(HostPool& pool, std::uint64_t block_size, unsigned count)
    : arena_(pool.allocate_staging(block_size * count)) {
  for (unsigned i = count; i > 0; --i) free_.push_back(arena_->data() + (i - 1) * block_size);
}

std::byte* StreamBlocks::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !free_.empty() || error_ != nullptr; });
  if (error_ != nullptr) std::rethrow_exception(error_);
  std::byte* block = free_.back();
  free_.pop_back();
  return block;
}

std::unique_ptr<Job> StreamBlocks::start(const StreamWrite& write) {
  auto job = std::make_unique<WriteJob>(shared_from_this(), write);
  const std::lock_guard lock(mutex_);
  if (under_way_++ == 0) busy_ = Stopwatch();
  if (write.source != nullptr) ++copying_;
  return job;
}

void StreamBlocks::copied() noexcept {
  const std::lock_guard lock(mutex_);
  if (--copying_ == 0) changed_.notify_all();
}

void StreamBlocks::over(std::byte* block, std::uint64_t payload, const std::exception_ptr& error) noexcept {
  const std::lock_guard lock(mutex_);
  if (error != nullptr && error_ == nullptr) error_ = error;
  if (error != nullptr) abandoned_ = true;
  if (payload > 0) {
    ++counts_.writes;
    counts_.bytes_written += payload;
  }
  free_.push_back(block);
  if (--under_way_ == 0) counts_.write_seconds += busy_.seconds();
  changed_.notify_all();
}

void StreamBlocks::wait_copied() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return copying_ == 0; });
}

void StreamBlocks::wait_written() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return under_way_ == 0; });
}

void StreamBlocks::rethrow() const {
  const std::lock_guard lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void StreamBlocks::abandon() noexcept {
  abandoned_ = true;
}

void StreamBlocks::count_fill(double seconds) {
  const std::lock_guard lock(mutex_);
  ++counts_.fills;
  counts_.fill_seconds += seconds;
}

StreamBlocks::Counts StreamBlocks::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts = counts_;
  if (under_way_ > 0) counts.write_seconds += busy_.seconds();
  return counts;
}

}  // namespace penstock
