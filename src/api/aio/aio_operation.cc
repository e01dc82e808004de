#include "api/aio/aio_operation.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "base/error.h"
#include "base/page.h"
#include "base/with_path.h"
#include "io/closing.h"
#include "io/file.h"
#include "transfer/block_job.h"

namespace penstock {
namespace {

constexpr std::uint64_t kCompareStep = 1 * kMiB;
constexpr auto kLargestFile = static_cast<std::uint64_t>(INT64_MAX);
constexpr mode_t kNewMode = 0666;  // less the umask

std::string descriptor_path(int fd) {
  return fmt::format("/proc/self/fd/{}", fd);
}

std::string describe_descriptor(int fd) {
  std::error_code ignored;
  const auto target = std::filesystem::read_symlink(descriptor_path(fd), ignored);
  return target.empty() ? fmt::format("descriptor {}", fd) : target.native();
}

// One call of pread or pwrite after the other until all bytes have moved.
template <typename Call>
void move_all(const std::string& path, const char* verb, std::byte* data, std::uint64_t nbytes, std::uint64_t offset,
              Call&& call) {
  while (nbytes > 0) {
    const ssize_t count = call(data, nbytes, static_cast<off_t>(offset));
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) {
      throw_errno(path, fmt::format("{} of {} bytes at offset {} failed", verb, nbytes, offset),
                  count < 0 ? errno : EIO);
    }
    data += count;
    nbytes -= static_cast<std::uint64_t>(count);
    offset += static_cast<std::uint64_t>(count);
  }
}

void read_all(const std::string& path, int fd, std::byte* data, std::uint64_t nbytes, std::uint64_t offset) {
  move_all(path, "read", data, nbytes, offset,
           [fd](std::byte* to, std::size_t count, off_t at) { return ::pread(fd, to, count, at); });
}

void write_all(const std::string& path, int fd, std::byte* data, std::uint64_t nbytes, std::uint64_t offset) {
  move_all(path, "write", data, nbytes, offset,
           [fd](std::byte* from, std::size_t count, off_t at) { return ::pwrite(fd, from, count, at); });
}

}  // namespace

// One block in flight. Holds the operation, and so the memory, for as long as the kernel may touch it.
class AioOperation::BlockMove final : public BlockJob {
 public:
  BlockMove(std::shared_ptr<AioOperation> operation, std::uint64_t begin, std::uint64_t nbytes)
      : BlockJob(operation->direction_), operation_(std::move(operation)), begin_(begin), nbytes_(nbytes) {}

  NextStep start(std::byte*, int, Transfer& transfer) override {
    const bool direct = static_cast<bool>(operation_->direct_fd_);
    BlockRequest wanted;
    wanted.operation = operation_->direction_;
    wanted.fd = direct ? operation_->direct_fd_.get() : operation_->fd_.get();
    wanted.data = operation_->data() + begin_;
    wanted.offset = operation_->offset_ + begin_;
    wanted.length = wanted.minimum = nbytes_;
    wanted.alignment = direct ? operation_->alignment_ : 1;
    return request(wanted, transfer);
  }

  NextStep transferred(std::byte*) override {
    moved_ = nbytes_;
    return NextStep::kEnd;
  }

  void end(std::exception_ptr error) noexcept override { operation_->job_ended(std::move(error), moved_); }
  bool abandoned() const noexcept override { return operation_->abandoned(); }

 private:
  const std::string& path() const noexcept override { return operation_->path_; }

  const std::shared_ptr<AioOperation> operation_;
  const std::uint64_t begin_;
  const std::uint64_t nbytes_;
  std::uint64_t moved_ = 0;
};

AioOperation::AioOperation(IoRequest::Operation direction, const AioMemory& memory, const AioPlace& place)
    : direction_(direction),
      memory_(memory),
      whole_file_(!place.offset && place.fd < 0),
      validate_(place.validate),
      offset_(place.offset.value_or(0)),
      path_(place.fd < 0 ? place.path.native() : describe_descriptor(place.fd)),
      openable_(place.fd < 0 ? place.path.native() : descriptor_path(place.fd)) {
  if (offset_ > kLargestFile || memory.nbytes > kLargestFile - offset_) {
    throw_argument("{}: no file has {} bytes at offset {}", path_, memory.nbytes, offset_);
  }
  if (memory.data == nullptr && memory.nbytes > 0) throw_argument("{}: the buffer has no memory", path_);
}

std::shared_ptr<AioOperation> AioOperation::open_read(const AioMemory& memory, const AioPlace& place) {
  std::shared_ptr<AioOperation> operation(new AioOperation(IoRequest::Operation::kRead, memory, place));
  operation->open(O_RDONLY);
  operation->check_reach();
  operation->stand_in_for_device();
  operation->choose_direct(1);
  return operation;
}

std::shared_ptr<AioOperation> AioOperation::open_write(const AioMemory& memory, const AioPlace& place) {
  std::shared_ptr<AioOperation> operation(new AioOperation(IoRequest::Operation::kWrite, memory, place));
  operation->stand_in_for_device();
  operation->open(O_RDWR | (place.fd < 0 ? O_CREAT : 0));
  // A page of the cache must never hold old bytes of what another operation writes past it at the same time.
  operation->choose_direct(page_size());
  operation->reserve();
  return operation;
}

void AioOperation::open(int flags) {
  // Not blocking, so that a FIFO is refused and not waited for.
  fd_.reset(::open(openable_.c_str(), flags | O_CLOEXEC | O_NONBLOCK, kNewMode));
  if (!fd_) throw_errno(path_, reads() ? "cannot open" : "cannot open for writing", errno);
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) throw_errno(path_, "cannot stat", errno);
  if (S_ISDIR(status.st_mode)) throw_errno(path_, "cannot read", EISDIR);
  if (!S_ISREG(status.st_mode)) throw_argument("{}: not a regular file", path_);
  size_before_ = static_cast<std::uint64_t>(status.st_size);
}

void AioOperation::stand_in_for_device() {
  device_ = find_place(memory_.data).device;
  if (device_ == nullptr) return;
  stand_in_ = host_pool(nullptr)->allocate(memory_.nbytes);
  if (reads()) return;
  with_path(path_, [&] { lanes_after_caller()->fetch(data(), device_address(), memory_.nbytes); });
}

// What the caller has queued on the device's default stream comes first.
std::unique_ptr<Lanes> AioOperation::lanes_after_caller() const {
  auto lanes = std::make_unique<Lanes>(device_);
  lanes->wait_for(device_->moment(nullptr));
  return lanes;
}

void AioOperation::check_reach() const {
  if (offset_ + memory_.nbytes <= size_before_) return;
  throw_argument("{}: {} bytes at offset {} reach past its end, it has {} bytes", path_, memory_.nbytes, offset_,
                 size_before_);
}

void AioOperation::choose_direct(std::uint64_t offset_alignment) {
  by_blocks_ = memory_.nbytes;
  const File file = File::open(descriptor_path(fd_.get()));
  if (!file.direct().fd) return;
  const DirectAlignment needed = file.direct().alignment;
  const std::uint64_t granule = std::max<std::uint64_t>(needed.offset, offset_alignment);
  const std::uint64_t nbytes = align_down(memory_.nbytes, granule);
  const bool fits = is_aligned(offset_, granule) && is_aligned(reinterpret_cast<std::uintptr_t>(data()), needed.memory);
  if (nbytes == 0 || !fits) return;
  const int access = reads() ? O_RDONLY : O_RDWR;
  direct_fd_.reset(::open(descriptor_path(fd_.get()).c_str(), access | O_CLOEXEC | O_DIRECT));
  if (!direct_fd_) return;
  alignment_ = needed.offset;
  by_blocks_ = nbytes;
}

// Direct writes into space that is there already need not wait for each other, and a full disk is met now.
void AioOperation::reserve() const {
  const std::uint64_t end = offset_ + memory_.nbytes;
  if (!direct_fd_ || end <= size_before_) return;
  const std::uint64_t begin = std::max(offset_, size_before_);
  const auto is_full = [&] {
    const int result = ::fallocate(fd_.get(), 0, static_cast<off_t>(begin), static_cast<off_t>(end - begin));
    return result != 0 && errno_kind(errno) == ErrorKind::kNoSpace;
  };
  if (!is_full()) return;
  wait_for_closing();  // what earlier saves replaced may be on its way out
  if (!is_full()) return;
  throw_errno(path_, fmt::format("cannot reserve {} bytes at offset {}", end - begin, begin), errno);
}

void AioOperation::start(Crew& crew, std::uint64_t block_size) {
  std::vector<std::unique_ptr<Job>> jobs;
  const std::uint64_t step =
      direct_fd_ ? std::max<std::uint64_t>(align_down(block_size, alignment_), alignment_) : block_size;
  for (std::uint64_t begin = 0; begin < by_blocks_; begin += step) {
    jobs.push_back(std::make_unique<BlockMove>(shared_from_this(), begin, std::min(step, by_blocks_ - begin)));
  }
  if (jobs.empty()) return;
  expect(jobs.size());
  crew.add(std::move(jobs));
}

void AioOperation::finish() {
  rethrow();
  move_rest();
  if (!reads() && whole_file_ && ::ftruncate(fd_.get(), static_cast<off_t>(memory_.nbytes)) != 0) {
    throw_errno(path_, fmt::format("cannot set the size to {}", memory_.nbytes), errno);
  }
  if (validate_) compare();
  if (!reads() || device_ == nullptr) return;
  with_path(path_, [&] { lanes_after_caller()->fill(device_address(), data(), memory_.nbytes); });
}

void AioOperation::move_rest() {
  std::byte* rest = data() + by_blocks_;
  const std::uint64_t nbytes = memory_.nbytes - by_blocks_;
  if (reads()) {
    read_all(path_, fd_.get(), rest, nbytes, offset_ + by_blocks_);
  } else {
    write_all(path_, fd_.get(), rest, nbytes, offset_ + by_blocks_);
  }
}

void AioOperation::compare() const {
  std::vector<std::byte> again(std::min<std::uint64_t>(kCompareStep, memory_.nbytes));
  for (std::uint64_t begin = 0; begin < memory_.nbytes; begin += again.size()) {
    const std::uint64_t step = std::min<std::uint64_t>(again.size(), memory_.nbytes - begin);
    read_all(path_, fd_.get(), again.data(), step, offset_ + begin);
    const auto differs =
        std::mismatch(again.begin(), again.begin() + static_cast<std::ptrdiff_t>(step), data() + begin);
    if (differs.first == again.begin() + static_cast<std::ptrdiff_t>(step)) continue;
    const auto at = offset_ + begin + static_cast<std::uint64_t>(differs.first - again.begin());
    throw Error(ErrorKind::kChanged, fmt::format("{}: the byte at offset {} is not the one in memory", path_, at));
  }
}

}  // namespace penstock
