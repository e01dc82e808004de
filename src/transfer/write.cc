#include "transfer/write.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/copy.h"
#include "base/tuning.h"
#include "base/with_path.h"
#include "memory/populate.h"
#include "transfer/block_job.h"
#include "transfer/fetch.h"

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

  bool needs_staging() const noexcept override {
    return !block_.straight || (device_file() != nullptr && !batch_->devices_write);
  }

  NextStep start(std::byte* staging, int staging_index, Transfer& transfer) override {
    if (staging == nullptr && device_file() != nullptr) return write_by_device();
    if (staging == nullptr) {
      if (batch_->observe) batch_->observe(pieces_.front(), memory());
      return write(memory(), -1, transfer);
    }
    fill(staging);
    if (start_fetching(staging)) {
      if (batch_->target.fresh) populate(batch_->target.memory + block_.offset, block_.length);
      return NextStep::kCopy;
    }
    return write(staging, staging_index, transfer);
  }

  bool copy_is_done() noexcept override { return fetch_.is_done(); }
  void wait_for_copy() noexcept override { fetch_.wait(); }

  NextStep copied(std::byte* staging, int staging_index, Transfer& transfer) override {
    if (abandoned()) return NextStep::kEnd;
    with_path(path(), [&] { fetch_.land(); });
    if (start_fetching(staging)) return NextStep::kCopy;
    for (const Piece& piece : pieces_) {
      if (batch_->observe && is_on_device(piece)) batch_->observe(piece, place_of(piece, staging));
    }
    return write(staging, staging_index, transfer);
  }

  NextStep transferred(std::byte* staging) override {
    written_ = payload();
    (batch_->target.direct ? counters_.bytes_direct : counters_.bytes_buffered) += written_;
    counters_.bytes_on_drive += block_.length;
    if (staging != nullptr) counters_.bytes_copied += written_;
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

  bool is_on_device(const Piece& piece) const { return batch_->origins[piece.owner].device != nullptr; }
  std::byte* place_of(const Piece& piece, std::byte* staging) const { return staging + (piece.offset - block_.offset); }

  // Of a straight block; null: it is the host's.
  DeviceFile* device_file() const noexcept { return batch_->device_files[pieces_.front().owner].get(); }

  // What the addresses of its pieces count from.
  std::uint64_t base_of(std::uint32_t owner) const {
    const Origin& origin = batch_->origins[owner];
    return batch_->device_files[owner] == nullptr ? 0 : origin.device->address() + origin.device_offset;
  }

  // A file that a device failed to write once it is not asked to write again.
  NextStep write_by_device() {
    try {
      const Piece& piece = pieces_.front();
      batch_->origins[piece.owner].device->lanes().settle();
      const unsigned requests = device_file()->write(block_.offset, {piece.address, 0}, block_.length);
      counters_.requests += requests;
      counters_.resumed += requests - 1;
    } catch (const std::exception& error) {
      batch_->devices_write = false;
      batch_->target.gds->note_staged(error.what());
      return NextStep::kRestart;
    }
    written_ = payload();
    counters_.bytes_gds += written_;
    counters_.bytes_direct += written_;
    counters_.bytes_on_drive += block_.length;
    return NextStep::kEnd;
  }

  // What the host has; the rest is noted, to be fetched.
  void fill(std::byte* staging) {
    std::uint64_t filled = 0;
    for (const Piece& piece : pieces_) {
      const std::span target(place_of(piece, staging), static_cast<std::size_t>(piece.nbytes));
      const Origin& origin = batch_->origins[piece.owner];
      filled = piece.offset + piece.nbytes - block_.offset;
      if (origin.device != nullptr) {
        fetch_.add(origin, piece.address - base_of(piece.owner), target);
        continue;
      }
      const std::byte* cached = target.data();
      if (origin.data != nullptr) {
        cached = reinterpret_cast<const std::byte*>(static_cast<std::uintptr_t>(piece.address));
        copy(target.data(), cached, piece.nbytes);
      } else {
        origin.fill(piece.address, target);
      }
      // A checksum is cheapest of what the copy has just brought into the cache.
      if (batch_->observe) batch_->observe(piece, cached);
    }
    // Only the last block of a direct write reaches past its pieces; the file is cut to size afterwards.
    std::memset(staging + filled, 0, block_.length - filled);
  }

  // False when nothing is left to fetch.
  bool start_fetching(std::byte* staging) {
    const std::span whole(staging, static_cast<std::size_t>(batch_->staging_size));
    return with_path(path(), [&] { return fetch_.start(whole.subspan(static_cast<std::size_t>(block_.length))); });
  }

  // The bytes are there: at `data`.
  NextStep write(std::byte* data, int buffer_index, Transfer& transfer) {
    const WriteTarget& target = batch_->target;
    if (target.fd < 0) {
      if (target.memory != nullptr) copy_past_caches(target.memory + block_.offset, data, block_.length);
      written_ = payload();
      return NextStep::kEnd;
    }
    BlockRequest wanted;
    wanted.operation = IoRequest::Operation::kWrite;
    wanted.fd = target.fd;
    wanted.data = data;
    wanted.offset = block_.offset;
    wanted.length = wanted.minimum = block_.length;
    wanted.alignment = target.alignment.offset;
    wanted.buffer_index = buffer_index;
    return request(wanted, transfer);
  }

  // The page cache is about to read the copy; else nobody but the drive does.
  void copy(std::byte* target, const std::byte* source, std::uint64_t nbytes) const {
    batch_->target.direct ? copy_past_caches(target, source, nbytes) : void(std::memcpy(target, source, nbytes));
  }

  const std::shared_ptr<WriteBatch> batch_;
  Counters& counters_;
  const Block& block_;
  const std::span<const Piece> pieces_;
  Fetch fetch_;
  std::uint64_t written_ = 0;
};

// Whether the host has to put something in order that was fetched from a device.
bool needs_scratch(std::span<const WritePart> parts) {
  return std::any_of(parts.begin(), parts.end(), [](const WritePart& part) {
    return part.origin.device != nullptr && !part.origin.device->is_plain();
  });
}

// The file, for the device that a part lies on; nothing, with a reason for the statistics, where it goes through
// staging.
std::shared_ptr<DeviceFile> open_for_device(const WriteTarget& target, const WritePart& part, bool observed) {
  if (part.origin.device == nullptr || target.gds == nullptr || !target.gds->is_on()) return nullptr;
  if (part.nbytes < tuning::kSmallestStraightWrite) return nullptr;
  const char* const obstacle = !target.direct ? "no direct I/O"
                               : observed     ? "checksums are taken on the host"
                               : !part.origin.device->is_plain()
                                   ? "what is converted or strided passes through the host"
                                   : nullptr;
  if (obstacle != nullptr) {
    target.gds->note_staged(fmt::format("{}: {}", target.path, obstacle));
    return nullptr;
  }
  target.gds->note_unregistered("the memory is the caller's");
  return target.gds->open(part.origin.device->lanes().device(), target.fd, target.path);
}

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
  bool by_device = false;
  for (std::size_t number = 0; number < parts.size(); ++number) {
    const WritePart& part = parts[number];
    batch->origins.push_back(part.origin);
    batch->device_files.push_back(open_for_device(target, part, static_cast<bool>(observe)));
    if (part.nbytes == 0) continue;
    Segment segment;
    segment.offset = part.offset;
    segment.nbytes = part.nbytes;
    // Or 0: of what is produced or lies on a device addresses are offsets within the part, so none joins another.
    segment.address = reinterpret_cast<std::uintptr_t>(part.origin.data);
    segment.owner = static_cast<std::uint32_t>(number);
    segment.straight = part.origin.data != nullptr && target.straight;
    if (batch->device_files.back() != nullptr) {
      segment.address = part.origin.device->address() + part.origin.device_offset;
      segment.straight = segment.any_address = by_device = true;
    }
    segments.push_back(segment);
  }
  std::sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) { return a.offset < b.offset; });
  PlanOptions options;
  batch->staging_size = block_size;
  options.block_size = needs_scratch(parts) ? block_size / 2 : block_size;
  options.alignment = target.alignment.offset;
  options.memory_alignment = target.alignment.memory;
  options.largest_gap = 0;
  if (by_device) options.straight_granule = tuning::kGdsAlignment;
  options.smallest_straight = tuning::kSmallestStraightWrite;
  batch->plan = plan_blocks(coalesce(segments, /*keep_owners=*/observe || by_device), options);
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
