#include "transfer/write.h"

#include <sys/uio.h>

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/error.h"
#include "io/block_device.h"

namespace penstock {
namespace {

constexpr int kUncached = 0x80;  // RWF_DONTCACHE, since Linux 6.14; not in every libc's headers
constexpr std::uint64_t kSmallestStraight = 256 * kKiB;

class WriteJob final : public Job {
 public:
  WriteJob(std::shared_ptr<WriteBatch> batch, Counters& counters, std::size_t block)
      : batch_(std::move(batch)), counters_(counters), block_(batch_->plan.blocks[block]) {}

  bool start(std::byte* staging, int staging_index, Transfer& transfer) override {
    if (!block_.straight) fill(staging);
    if (block_.straight && batch_->observe) batch_->observe(*begin(), memory());
    const auto length = static_cast<std::uint32_t>(block_.length);
    transfer.minimum = length;
    transfer.alignment = batch_->alignment;
    transfer.request.operation = IoRequest::Operation::kWrite;
    transfer.request.fd = batch_->fd;
    transfer.request.data = block_.straight ? memory() : staging;
    transfer.request.length = length;
    transfer.request.offset = block_.offset;
    transfer.request.flags = batch_->flags;
    transfer.request.buffer_index = block_.straight ? -1 : staging_index;
    return true;
  }

  void finish(std::byte*) override {
    moved_ = payload();
    (batch_->alignment > 1 ? counters_.bytes_direct : counters_.bytes_buffered) += moved_;
    counters_.bytes_on_device += block_.length;
    if (!block_.straight) counters_.bytes_copied += moved_;
  }

  std::exception_ptr failure(const Finished& finished) const override {
    const int error_number = finished.error_number;
    return std::make_exception_ptr(Error(
        errno_kind(error_number),
        fmt::format("{}: {}", batch_->path, describe_failure(finished, IoRequest::Operation::kWrite)), error_number));
  }

  void over(std::exception_ptr error) noexcept override { batch_->job_over(std::move(error), moved_); }
  bool abandoned() const noexcept override { return batch_->abandoned(); }

 private:
  const Piece* begin() const { return batch_->plan.pieces.data() + block_.first_piece; }
  const Piece* end() const { return begin() + block_.piece_count; }
  // The kernel only reads it.
  std::byte* memory() const { return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(begin()->address)); }

  std::uint64_t payload() const {
    std::uint64_t bytes = 0;
    for (const Piece* piece = begin(); piece != end(); ++piece) bytes += piece->nbytes;
    return bytes;
  }

  void fill(std::byte* staging) {
    std::uint64_t filled = 0;
    for (const Piece* piece = begin(); piece != end(); ++piece) {
      std::byte* target = staging + (piece->offset - block_.offset);
      const Origin& origin = batch_->origins[piece->owner];
      const std::byte* cached = target;
      if (origin.data != nullptr) {
        cached = reinterpret_cast<const std::byte*>(static_cast<std::uintptr_t>(piece->address));
        copy(target, cached, piece->nbytes);
      } else {
        origin.fill(piece->address, {target, static_cast<std::size_t>(piece->nbytes)});
      }
      if (batch_->observe) batch_->observe(*piece, cached);
      filled = piece->offset + piece->nbytes - block_.offset;
    }
    // Only the last block of a direct write reaches past its pieces; the file is cut to size afterwards.
    std::memset(staging + filled, 0, block_.length - filled);
  }

  // The page cache is about to read the copy; else nobody but the drive does.
  void copy(std::byte* target, const std::byte* source, std::uint64_t nbytes) const {
    if (batch_->alignment == 1) {
      std::memcpy(target, source, nbytes);
    } else {
      copy_past_caches(target, source, nbytes);
    }
  }

  const std::shared_ptr<WriteBatch> batch_;
  Counters& counters_;
  const Block& block_;
  std::uint64_t moved_ = 0;  // bytes that went out
};

void fill_with_zeros(std::uint64_t, std::span<std::byte> bytes) {
  std::memset(bytes.data(), 0, bytes.size());
}

// A byte that the data will overwrite tells whether the filesystem knows the flag.
bool takes_uncached_writes(const NewFile& file) {
  char byte = 0;
  const iovec buffer{&byte, 1};
  return ::pwritev2(file.fd(), &buffer, 1, 0, kUncached) == 1;
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

WriteRoute choose_route(NewFile& file, WriteMethod asked, Landing landing) {
  if (asked == WriteMethod::kAuto || asked == WriteMethod::kDirect) {
    if (const auto alignment = file.use_direct()) {
      const bool straight = landing == Landing::kInPlace || (landing == Landing::kAuto && !on_virtual_drive(file.fd()));
      return {0, alignment->offset, alignment->memory, true, straight, "direct"};
    }
  }
  if (asked != WriteMethod::kBuffered && takes_uncached_writes(file)) return {kUncached, 1, 1, false, true, "uncached"};
  return {0, 1, 1, false, true, "buffered"};
}

std::shared_ptr<WriteBatch> plan_write(const NewFile& file, const WriteRoute& route, std::span<const WritePart> parts,
                                       std::uint64_t block_size, PieceObserver observe) {
  auto batch = std::make_shared<WriteBatch>();
  batch->path = file.path();
  batch->fd = file.fd();
  batch->flags = route.flags;
  batch->alignment = route.alignment;
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
  options.alignment = route.alignment;
  options.memory_alignment = route.memory_alignment;
  options.largest_gap = 0;
  options.allow_straight = route.straight;
  options.smallest_straight = kSmallestStraight;
  batch->plan = plan_blocks(coalesce(segments, /*keep_owners=*/static_cast<bool>(observe)), options);
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
