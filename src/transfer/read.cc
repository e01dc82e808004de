#include "transfer/read.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/cast.h"
#include "base/error.h"
#include "base/page.h"
#include "memory/populate.h"
#include "transfer/interleave.h"

namespace penstock {
namespace {

std::byte* at_address(std::uint64_t address) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

class ReadJob final : public Job {
 public:
  ReadJob(std::shared_ptr<ReadBatch> batch, Counters& counters, std::size_t task, std::size_t block)
      : batch_(std::move(batch)),
        counters_(counters),
        task_(batch_->tasks[task]),
        block_(task_.plan.blocks[block]),
        buffered_(task_.buffered[block]),
        drop_behind_(!task_.drop_behind.empty() && task_.drop_behind[block]) {}

  bool start(std::byte* staging, int staging_index, Transfer& transfer) override {
    if (buffered_) {
      read_buffered(staging);
      return false;
    }
    straight_ = block_.straight && has_its_pages();
    const auto length = static_cast<std::uint32_t>(block_.length);
    const std::uint64_t left = task_.file->size() - block_.offset;
    transfer.minimum = static_cast<std::uint32_t>(std::min<std::uint64_t>(length, left));
    transfer.alignment = task_.file->direct().alignment.offset;
    transfer.request.operation = IoRequest::Operation::kRead;
    transfer.request.fd = task_.file->direct().fd.get();
    transfer.request.data = straight_ ? at_address(first_piece().address) : staging;
    transfer.request.length = length;
    transfer.request.offset = block_.offset;
    transfer.request.buffer_index = straight_ ? -1 : staging_index;
    return true;
  }

  void finish(std::byte* staging) override {
    if (!straight_) land(staging, block_.offset);
    if (straight_ && batch_->observe) batch_->observe(first_piece(), at_address(first_piece().address));
    moved_ = payload();
    counters_.bytes_direct += moved_;
    counters_.bytes_on_device += block_.length;
    if (!straight_) counters_.bytes_copied += moved_;
  }

  std::exception_ptr failure(const Finished& finished) const override {
    const std::string& path = task_.file->path();
    const std::string what = describe_failure(finished, IoRequest::Operation::kRead);
    const ErrorKind kind = finished.ended_early ? ErrorKind::kChanged : errno_kind(finished.error_number);
    return std::make_exception_ptr(Error(kind, fmt::format("{}: {}", path, what), finished.error_number));
  }

  void over(std::exception_ptr error) noexcept override { batch_->job_over(std::move(error), moved_); }
  bool abandoned() const noexcept override { return batch_->abandoned(); }

 private:
  const Piece& first_piece() const { return task_.plan.pieces[block_.first_piece]; }
  const Piece* begin() const { return task_.plan.pieces.data() + block_.first_piece; }
  const Piece* end() const { return begin() + block_.piece_count; }

  // Whether the memory of a straight block can be read into as it is. Asks for huge pages where they are wanted.
  bool has_its_pages() const {
    if (!task_.by_page) return true;
    return task_.pages != nullptr && task_.pages->have(at_address(first_piece().address), block_.length, *batch_->luck);
  }

  std::uint64_t payload() const {
    std::uint64_t bytes = 0;
    for (const Piece* piece = begin(); piece != end(); ++piece) bytes += piece->nbytes;
    return bytes;
  }

  void read_buffered(std::byte* staging) {
    const File& file = *task_.file;
    const std::uint64_t first = first_piece().offset;
    const std::uint64_t nbytes = end()[-1].offset + end()[-1].nbytes - first;
    const Piece& piece = first_piece();
    if (block_.piece_count == 1 && piece.from == piece.to && !batch_->discard) {
      const bool is_huge = task_.by_page && block_.straight && has_its_pages();
      if (!is_huge && batch_->populate) populate(at_address(piece.address), piece.nbytes);
      file.read(piece.offset, at_address(piece.address), piece.nbytes);
      if (batch_->observe) batch_->observe(piece, at_address(piece.address));
    } else {
      file.read(first, staging, nbytes);
      land(staging, first);
    }
    // A hint: a kernel that ignores it costs page cache, not correctness.
    if (drop_behind_) {
      // Whole pages only are dropped, so the range is widened to them.
      const std::uint64_t begin = align_down(first, page_size());
      const std::uint64_t end = align_up(first + nbytes, page_size());
      ::posix_fadvise(file.fd(), static_cast<off_t>(begin), static_cast<off_t>(end - begin), POSIX_FADV_DONTNEED);
    }
    ++counters_.requests;
    moved_ = payload();
    counters_.bytes_buffered += moved_;
    counters_.bytes_on_device += nbytes;
  }

  // `bytes` holds the file from `offset` on.
  void land(const std::byte* bytes, std::uint64_t offset) {
    for (const Piece* piece = begin(); piece != end(); ++piece) {
      const std::byte* source = bytes + (piece->offset - offset);
      if (batch_->observe) batch_->observe(*piece, source);
      if (batch_->discard) continue;
      if (batch_->populate && piece->from == piece->to) populate(at_address(piece->address), piece->nbytes);
      if (piece->from == piece->to) {
        std::memcpy(at_address(piece->address), source, piece->nbytes);
      } else {
        cast_elements(piece->from, source, piece->to, at_address(piece->address),
                      piece->nbytes / (dtype_bits(piece->from) / 8));
      }
    }
  }

  const std::shared_ptr<ReadBatch> batch_;
  Counters& counters_;
  const ReadTask& task_;
  const Block& block_;
  const bool buffered_;
  const bool drop_behind_;
  bool straight_ = false;
  std::uint64_t moved_ = 0;  // bytes that arrived
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

}  // namespace

void start_reading(Crew& crew, const std::shared_ptr<ReadBatch>& batch) {
  std::vector<std::unique_ptr<Job>> jobs;
  for (const auto [task, block] : order_of(batch->tasks)) {
    jobs.push_back(std::make_unique<ReadJob>(batch, crew.counters(), task, block));
  }
  batch->expect(jobs.size());
  crew.add(std::move(jobs));
}

}  // namespace penstock
