#include "transfer/write.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/tuning.h"
#include "transfer/block_job.h"

namespace penstock {
namespace {

class WriteJob final : public BlockJob {
 public:
  WriteJob(std::shared_ptr<WriteBatch> batch, Counters& counters, std::size_t block)
      : BlockJob(IoRequest::Operation::kWrite),
        batch_(std::move(batch)),
        counters_(counters),
        block_(batch_->plan.blocks[block]),
        pieces_(batch_->plan.pieces.data() + block_.first_piece, block_.piece_count) {}

  NextStep start(std::byte* staging, int staging_index, Transfer& transfer) override {
    if (!block_.straight) fill(staging);
    if (block_.straight && batch_->observe) batch_->observe(pieces_.front(), memory());
    BlockRequest wanted;
    wanted.operation = IoRequest::Operation::kWrite;
    wanted.fd = batch_->target.fd;
    wanted.data = block_.straight ? memory() : staging;
    wanted.offset = block_.offset;
    wanted.length = wanted.minimum = block_.length;
    wanted.alignment = batch_->target.alignment.offset;
    wanted.buffer_index = block_.straight ? -1 : staging_index;
    return request(wanted, transfer);
  }

  NextStep transferred(std::byte*) override {
    written_ = payload();
    (batch_->target.direct ? counters_.bytes_direct : counters_.bytes_buffered) += written_;
    counters_.bytes_on_device += block_.length;
    if (!block_.straight) counters_.bytes_copied += written_;
    return NextStep::kEnd;
  }

  void end(std::exception_ptr error) noexcept override { batch_->job_ended(std::move(error), written_); }
  bool abandoned() const noexcept override { return batch_->abandoned(); }

 private:
  const std::string& path() const noexcept override { return batch_->target.path; }

  // The kernel only reads it.
  std::byte* memory() const {
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(pieces_.front().address));
  }

  std::uint64_t payload() const {
    std::uint64_t bytes = 0;
    for (const Piece& piece : pieces_) bytes += piece.nbytes;
    return bytes;
  }

  void fill(std::byte* staging) {
    std::uint64_t filled = 0;
    for (const Piece& piece : pieces_) {
      std::byte* target = staging + (piece.offset - block_.offset);
      const Origin& origin = batch_->origins[piece.owner];
      const std::byte* cached = target;
      if (origin.data != nullptr) {
        cached = reinterpret_cast<const std::byte*>(static_cast<std::uintptr_t>(piece.address));
        copy(target, cached, piece.nbytes);
      } else {
        origin.fill(piece.address, {target, static_cast<std::size_t>(piece.nbytes)});
      }
      // A checksum is cheapest of what the copy has just brought into the cache.
      if (batch_->observe) batch_->observe(piece, cached);
      filled = piece.offset + piece.nbytes - block_.offset;
    }
    // Only the last block of a direct write reaches past its pieces; the file is cut to size afterwards.
    std::memset(staging + filled, 0, block_.length - filled);
  }

  // The page cache is about to read the copy; else nobody but the drive does.
  void copy(std::byte* target, const std::byte* source, std::uint64_t nbytes) const {
    batch_->target.direct ? copy_past_caches(target, source, nbytes) : void(std::memcpy(target, source, nbytes));
  }

  const std::shared_ptr<WriteBatch> batch_;
  Counters& counters_;
  const Block& block_;
  const std::span<const Piece> pieces_;
  std::uint64_t written_ = 0;
};

void fill_with_zeros(std::uint64_t, std::span<std::byte> bytes) {
  std::memset(bytes.data(), 0, bytes.size());
}

}  // namespace

void add_zero_parts(std::vector<WritePart>& parts, std::uint64_t size) {
  std::vector<WritePart> holes;
  std::uint64_t covered = 0;
  const auto cover_until = [&](std::uint64_t begin) {
    if (begin > covered) holes.push_back({covered, begin - covered, {nullptr, fill_with_zeros}});
  };
  for (const WritePart& part : parts) {
    cover_until(part.offset);
    covered = std::max(covered, part.offset + part.nbytes);
  }
  cover_until(size);
  parts.insert(parts.end(), std::make_move_iterator(holes.begin()), std::make_move_iterator(holes.end()));
}

std::shared_ptr<WriteBatch> plan_write(WriteTarget target, std::span<const WritePart> parts, std::uint64_t block_size,
                                       PieceObserver observe) {
  auto batch = std::make_shared<WriteBatch>();
  std::vector<Segment> segments;
  for (std::size_t number = 0; number < parts.size(); ++number) {
    const WritePart& part = parts[number];
    batch->origins.push_back(part.origin);
    if (part.nbytes == 0) continue;
    Segment segment;
    segment.offset = part.offset;
    segment.nbytes = part.nbytes;
    segment.address = reinterpret_cast<std::uintptr_t>(part.origin.data);  // or 0: offsets within the part
    segment.owner = static_cast<std::uint32_t>(number);
    segment.straight = part.origin.data != nullptr;
    segments.push_back(segment);
  }
  std::sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) { return a.offset < b.offset; });
  PlanOptions options;
  options.block_size = block_size;
  options.alignment = target.alignment.offset;
  options.memory_alignment = target.alignment.memory;
  options.largest_gap = 0;
  options.allow_straight = target.straight;
  options.smallest_straight = tuning::kSmallestStraightWrite;
  batch->plan = plan_blocks(coalesce(segments, /*keep_owners=*/static_cast<bool>(observe)), options);
  batch->target = std::move(target);
  batch->observe = std::move(observe);
  return batch;
}

void start_writing(Crew& crew, const std::shared_ptr<WriteBatch>& batch) {
  std::vector<std::unique_ptr<Job>> jobs;
  for (std::size_t block = 0; block < batch->plan.blocks.size(); ++block) {
    jobs.push_back(std::make_unique<WriteJob>(batch, crew.counters(), block));
  }
  batch->expect(jobs.size());
  crew.add(std::move(jobs));
}

}  // namespace penstock
