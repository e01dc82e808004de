#include "api/aio/stream_file_blocks.h"

#include <cstring>
#include <utility>

#include "transfer/block_job.h"

namespace penstock {

class StreamBlocks::BlockWrite final : public BlockJob {
 public:
  BlockWrite(std::shared_ptr<StreamBlocks> blocks, const StreamWrite& write)
      : BlockJob(IoRequest::Operation::kWrite),
        blocks_(std::move(blocks)),
        write_(write),
        borrows_(write.source != nullptr) {}

  NextStep start(std::byte*, int, Transfer& transfer) override {
    if (borrows_) copy();
    BlockRequest wanted;
    wanted.operation = IoRequest::Operation::kWrite;
    wanted.fd = blocks_->target_.fd;
    wanted.data = write_.block;
    wanted.offset = write_.offset;
    wanted.length = wanted.minimum = write_.length;
    wanted.alignment = blocks_->target_.alignment.offset;
    return request(wanted, transfer);
  }

  NextStep transferred(std::byte*) override {
    written_ = write_.payload;
    return NextStep::kEnd;
  }

  void end(std::exception_ptr error) noexcept override {
    if (std::exchange(borrows_, false)) blocks_->copied();
    blocks_->ended(write_.block, written_, error);
  }

  bool abandoned() const noexcept override { return blocks_->abandoned(); }

 private:
  const std::string& path() const noexcept override { return blocks_->target_.path; }

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
  auto job = std::make_unique<BlockWrite>(shared_from_this(), write);
  const std::lock_guard lock(mutex_);
  if (under_way_++ == 0) busy_ = Stopwatch();
  if (write.source != nullptr) ++copying_;
  return job;
}

void StreamBlocks::copied() noexcept {
  const std::lock_guard lock(mutex_);
  if (--copying_ == 0) changed_.notify_all();
}

void StreamBlocks::ended(std::byte* block, std::uint64_t payload, const std::exception_ptr& error) noexcept {
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
