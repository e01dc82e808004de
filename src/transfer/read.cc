#include "transfer/read.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/bytes.h"
#include "base/page.h"
#include "base/tuning.h"
#include "transfer/block_job.h"
#include "transfer/interleave.h"

namespace penstock {
namespace {

class ReadJob final : public BlockJob {
 public:
  ReadJob(std::shared_ptr<ReadBatch> batch, Crew& crew, std::size_t task, std::size_t block)
      : BlockJob(IoRequest::Operation::kRead),
        batch_(std::move(batch)),
        counters_(crew.counters()),
        staging_size_(crew.settings().block_size),
        task_(batch_->tasks[task]),
        block_(task_.plan.blocks[block]),
        pieces_(task_.plan.pieces.data() + block_.first_piece, block_.piece_count),
        buffered_(task_.buffered[block]),
        drop_behind_(!task_.drop_behind.empty() && task_.drop_behind[block]) {}

  bool needs_staging() const noexcept override {
    return buffered_ || !block_.straight || !task_.destination->reads_by_device();
  }

  NextStep start(std::byte* staging, int staging_index, Transfer& transfer) override {
    if (staging == nullptr) return read_by_device();
    if (buffered_) return read_buffered(staging);
    target_ = block_.straight ? task_.destination->for_drive(pieces_.front()) : nullptr;
    if (target_ == nullptr && block_.length > staging_size_) take_part(block_.offset);
    return read_direct(staging, staging_index, transfer);
  }

  // Memory that the processor can write to and the kernel can't hand to a drive: some that is shared with a device.
  NextStep failed(const Finished& finished, std::byte* staging, int staging_index, Transfer& transfer) override {
    if (finished.error_number != EFAULT || target_ == nullptr || staging == nullptr) {
      return BlockJob::failed(finished, staging, staging_index, transfer);
    }
    target_ = nullptr;
    return read_direct(staging, staging_index, transfer);
  }

  NextStep transferred(std::byte* staging) override {
    counters_.bytes_direct += payload();
    counters_.bytes_on_drive += block_.length;
    if (target_ == nullptr) {
      counters_.bytes_copied += payload();
      return put(staging, block_.offset);
    }
    observe(pieces_.front(), target_);
    return NextStep::kEnd;
  }

  bool copy_is_done() noexcept override { return task_.destination->is_done(copy_); }
  void wait_for_copy() noexcept override { task_.destination->wait(copy_); }
  NextStep copied(std::byte* staging, int staging_index, Transfer& transfer) override {
    task_.destination->check();
    if (!is_part_ || block_.offset + block_.length == whole_end_ || abandoned()) return NextStep::kEnd;
    take_part(block_.offset + block_.length);
    return read_direct(staging, staging_index, transfer);
  }

  void end(std::exception_ptr error) noexcept override {
    const std::uint64_t arrived = error == nullptr && !abandoned() ? arrived_ + payload() : 0;
    batch_->job_ended(std::move(error), arrived);
  }
  bool abandoned() const noexcept override { return batch_->abandoned(); }

 private:
  const std::string& path() const noexcept override { return task_.file->path(); }

  std::uint64_t payload() const {
    std::uint64_t bytes = 0;
    for (const Piece& piece : pieces_) bytes += piece.nbytes;
    return bytes;
  }

  void observe(const Piece& piece, const std::byte* bytes) const {
    if (batch_->observe) batch_->observe(piece, bytes);
  }

  NextStep read_direct(std::byte* staging, int staging_index, Transfer& transfer) const {
    BlockRequest wanted;
    wanted.fd = task_.file->direct().fd.get();
    wanted.data = target_ != nullptr ? target_ : staging;
    wanted.offset = block_.offset;
    wanted.length = block_.length;
    wanted.minimum = std::min(block_.length, task_.file->size() - block_.offset);
    wanted.alignment = task_.file->direct().alignment.offset;
    wanted.buffer_index = target_ != nullptr ? -1 : staging_index;
    return request(wanted, transfer);
  }

  NextStep read_by_device() {
    const auto requests = task_.destination->read_by_device(pieces_.front());
    if (!requests) return NextStep::kRestart;
    counters_.requests += *requests;
    counters_.resumed += *requests - 1;
    counters_.bytes_gds += payload();
    counters_.bytes_direct += payload();
    counters_.bytes_on_drive += block_.length;
    return NextStep::kEnd;
  }

  // A straight block that the device failed to read is larger than a staging block: it is read part by part.
  void take_part(std::uint64_t offset) {
    if (!is_part_) {
      is_part_ = true;
      part_ = pieces_.front();
      whole_end_ = block_.offset + block_.length;
    } else {
      arrived_ += part_.nbytes;
      part_.address += part_.nbytes;
    }
    block_.offset = part_.offset = offset;
    block_.length = part_.nbytes = std::min(staging_size_, whole_end_ - offset);
    pieces_ = {&part_, 1};
  }

  NextStep read_buffered(std::byte* staging) {
    const File& file = *task_.file;
    const std::uint64_t first = pieces_.front().offset;
    const std::uint64_t nbytes = hull_of(pieces_).size();
    const Piece& piece = pieces_.front();
    const bool is_whole = pieces_.size() == 1 && piece.from == piece.to;
    std::byte* const target = is_whole ? task_.destination->for_copy(piece, block_.straight) : nullptr;
    file.read(first, target != nullptr ? target : staging, nbytes);
    if (drop_behind_) drop_pages(first, nbytes);
    ++counters_.requests;
    counters_.bytes_buffered += payload();
    counters_.bytes_on_drive += nbytes;
    if (target == nullptr) return put(staging, first);
    observe(piece, target);
    return NextStep::kEnd;
  }

  // A hint: a kernel that ignores it costs page cache, not correctness. Whole pages only are dropped, so the range is
  // widened to them.
  void drop_pages(std::uint64_t first, std::uint64_t nbytes) const {
    const std::uint64_t begin = align_down(first, page_size());
    const std::uint64_t end = align_up(first + nbytes, page_size());
    ::posix_fadvise(task_.file->fd(), static_cast<off_t>(begin), static_cast<off_t>(end - begin), POSIX_FADV_DONTNEED);
  }

  // `bytes` holds the file from `offset` on.
  NextStep put(std::byte* bytes, std::uint64_t offset) {
    for (const Piece& piece : pieces_) observe(piece, bytes + (piece.offset - offset));
    copy_ = task_.destination->put(pieces_, bytes, offset);
    return copy_ == kDone ? NextStep::kEnd : NextStep::kCopy;
  }

  const std::shared_ptr<ReadBatch> batch_;
  Counters& counters_;
  const std::uint64_t staging_size_;
  const ReadTask& task_;
  Block block_;
  std::span<const Piece> pieces_;
  const bool buffered_;
  const bool drop_behind_;
  std::byte* target_ = nullptr;  // of a block that goes straight there
  CopyTicket copy_ = kDone;
  bool is_part_ = false;  // `block_` is but a part of the block, and this of its piece
  Piece part_;
  std::uint64_t whole_end_ = 0;  // of the block, in the file
  std::uint64_t arrived_ = 0;    // in parts before this one
};

struct BlockNumber {
  std::size_t task;
  std::size_t block;
};

// Copies out of the page cache lie between reads, so that the drive works while they are made.
std::vector<BlockNumber> order_of(const std::vector<ReadTask>& tasks) {
  std::vector<BlockNumber> reads;
  std::vector<BlockNumber> copies;
  for (std::size_t task = 0; task < tasks.size(); ++task) {
    for (std::size_t block = 0; block < tasks[task].plan.blocks.size(); ++block) {
      (tasks[task].buffered[block] ? copies : reads).push_back({task, block});
    }
  }
  return interleave(reads, copies);
}

PlanOptions plan_options(const FileRead& read, bool direct, std::uint64_t block_size, std::uint64_t gds_block_size) {
  PlanOptions options;
  options.block_size = block_size;
  options.largest_gap = read.largest_gap;
  options.alignment = direct ? read.file->direct().alignment.offset : 1;
  options.memory_alignment = direct ? read.file->direct().alignment.memory : 1;
  options.allow_straight =
      read.route.landing == ReadLanding::kByPage || (read.route.landing == ReadLanding::kInPlace && direct);
  if (read.route.landing == ReadLanding::kByPage) options.straight_granule = kHugePage;
  if (read.route.reason == LandingReason::kDirectStorage) {
    options.alignment = std::max(options.alignment, tuning::kGdsAlignment);
    options.memory_alignment = 1;
    // What may be found in the page cache has to fit into a staging block.
    if (read.route.path == ReadPath::kDirect) options.straight_block_size = gds_block_size;
  }
  return options;
}

// So much of a staging block is read into that there is room behind it for what is converted.
std::uint64_t converted_block_size(const FileRead& read, std::uint64_t block_size, std::uint64_t alignment) {
  std::uint64_t parts = 0;  // the output of an input of 8 parts, at most
  for (const Segment& segment : read.segments) {
    if (segment.converts()) {
      parts = std::max<std::uint64_t>(parts, 8 * dtype_bits(segment.to) / dtype_bits(segment.from));
    }
  }
  // A forecast has no destination.
  if (parts == 0 || read.destination == nullptr || !read.destination->converts_in_staging()) return block_size;
  return align_down(block_size * 8 / (8 + parts), std::max(alignment, kCacheLine));
}

// Per block: is it wholly in the page cache?
std::vector<bool> resident_blocks(const File& file, const Plan& plan) {
  std::vector<bool> resident;
  for (const Block& block : plan.blocks) {
    const ByteRange range = hull_of(std::span(plan.pieces).subspan(block.first_piece, block.piece_count));
    resident.push_back(file.resident_bytes(range) == range.size());
  }
  return resident;
}

}  // namespace

ReadTask plan_read(const FileRead& read, bool keep_owners, std::uint64_t block_size, std::uint64_t gds_block_size) {
  ReadTask task{read.file, read.destination, {}, {}, {}};
  const File& file = *read.file;
  const ReadPath path = read.route.path;
  const bool direct = (path == ReadPath::kDirect || path == ReadPath::kByBlock) && file.direct().fd;
  PlanOptions options = plan_options(read, direct, block_size, gds_block_size);
  options.block_size = converted_block_size(read, block_size, options.alignment);
  task.plan = plan_blocks(coalesce(read.segments, keep_owners), options);
  task.buffered.assign(task.plan.blocks.size(), !direct);
  if (!direct) file.set_read_ahead(true);
  if (direct && path == ReadPath::kByBlock) task.buffered = resident_blocks(file, task.plan);
  if (path == ReadPath::kDropBehind) {
    // The promise to leave no page cache behind, kept the other way. What others had cached stays.
    task.drop_behind = resident_blocks(file, task.plan);
    task.drop_behind.flip();
  }
  return task;
}

void start_reading(Crew& crew, const std::shared_ptr<ReadBatch>& batch) {
  std::vector<std::unique_ptr<Job>> jobs;
  for (const auto [task, block] : order_of(batch->tasks)) {
    jobs.push_back(std::make_unique<ReadJob>(batch, crew, task, block));
  }
  batch->expect(jobs.size());
  crew.add(std::move(jobs));
}

}  // namespace penstock
