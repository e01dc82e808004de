#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <memory>

#include "base/bytes.h"
#include "base/error.h"
#include "base/tuning.h"
#include "io/filesystem.h"
#include "io/residency.h"

namespace penstock {
namespace {

constexpr std::uint32_t kProbeSize = 4096;

FileIdentity identity_of(const struct stat& status) {
  return {static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino),
          static_cast<std::uint64_t>(status.st_size),
          static_cast<std::int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec};
}

// Filesystems that don't report their alignment are asked by a read that every one of them should take.
bool direct_read_works(int fd) {
  std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(kProbeSize, kProbeSize), &std::free);
  return buffer != nullptr && ::pread(fd, buffer.get(), kProbeSize, 0) >= 0;
}

}  // namespace

std::optional<DirectAlignment> query_direct_alignment(int fd, bool* reported) {
  struct statx status {};
  const bool answered =
      ::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN) != 0;
  if (reported != nullptr) *reported = answered;
  if (!answered) return DirectAlignment{};
  if (status.stx_dio_offset_align == 0) return std::nullopt;
  return DirectAlignment{std::max(status.stx_dio_mem_align, 1u), status.stx_dio_offset_align};
}

File::File(std::string path, UniqueFd fd, FileIdentity identity)
    : path_(std::move(path)), fd_(std::move(fd)), identity_(identity) {}

File File::open(const std::filesystem::path& path) {
  // Not blocking, so that a FIFO is refused and not waited for.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw_errno(path.native(), "cannot open", errno);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw_errno(path.native(), "cannot stat", errno);
  if (S_ISDIR(status.st_mode)) throw_errno(path.native(), "cannot read", EISDIR);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorKind::kArgument, fmt::format("{}: not a regular file", path.native()));
  }
  File file(path.native(), std::move(fd), identity_of(status));
  file.set_read_ahead(false);
  return file;
}

File File::in_memory(const std::string& path, std::uint64_t size) {
  UniqueFd fd(::memfd_create("penstock", MFD_CLOEXEC));
  struct stat status {};
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(size)) != 0 || ::fstat(fd.get(), &status) != 0) {
    throw_errno(path, fmt::format("cannot take a file of {} bytes in memory", size), errno);
  }
  File file(path, std::move(fd), identity_of(status));
  file.in_memory_ = true;
  return file;
}

void File::set_read_ahead(bool on) const noexcept {
  ::posix_fadvise(fd(), 0, 0, on ? POSIX_FADV_NORMAL : POSIX_FADV_RANDOM);
}

void File::prefetch(ByteRange range) const noexcept {
  for (std::uint64_t begin = range.begin; begin < range.end; begin += tuning::kPrefetchStep) {
    const std::uint64_t nbytes = std::min(tuning::kPrefetchStep, range.end - begin);
    ::posix_fadvise(fd(), static_cast<off_t>(begin), static_cast<off_t>(nbytes), POSIX_FADV_WILLNEED);
  }
}

void File::read(std::uint64_t offset, void* data, std::size_t nbytes) const {
  auto* next = static_cast<std::byte*>(data);
  while (nbytes > 0) {
    const ssize_t count = ::pread(fd(), next, nbytes, static_cast<off_t>(offset));
    if (count < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      throw_errno(path_, fmt::format("read of {} bytes at offset {} failed", nbytes, offset), errno);
    }
    if (count == 0) {
      throw Error(ErrorKind::kChanged, fmt::format("{}: ends at offset {}, {} bytes before it should (it had {} bytes "
                                                   "when it was opened)",
                                                   path_, offset, nbytes, size()));
    }
    next += count;
    offset += static_cast<std::uint64_t>(count);
    nbytes -= static_cast<std::size_t>(count);
  }
}

const File::Direct& File::direct() const {
  return direct_->get([this] { return open_direct(); });
}

File::Direct File::open_direct() const {
  bool reported = false;
  const auto alignment = query_direct_alignment(fd(), &reported);
  if (!alignment) return {{}, {}, reported, "the kernel says that this file can't be read directly", 0};
  // Through /proc, so that it is the same file even when the name now belongs to another.
  UniqueFd direct(::open(fmt::format("/proc/self/fd/{}", fd()).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  if (!direct) return {{}, {}, reported, fmt::format("open with O_DIRECT: {}", errno_text(errno)), errno};
  if (!reported && !direct_read_works(direct.get())) {
    return {{}, {}, reported, fmt::format("a direct read of one page: {}", errno_text(errno)), errno};
  }
  return {std::move(direct), *alignment, reported, {}, 0};
}

bool File::try_read_direct(std::uint64_t offset, void* data, std::size_t length, std::size_t minimum) const noexcept {
  const ssize_t count = ::pread(direct().fd.get(), data, length, static_cast<off_t>(offset));
  return count >= 0 && static_cast<std::size_t>(count) >= minimum;
}

bool File::on_local_filesystem() const {
  return penstock::on_local_filesystem(fd());
}

bool File::is_open_for_writing() const noexcept {
  // Who opens the file for writing in the moment between the two calls is told to wait, and we are sent a signal: one
  // that is ignored unless the program wants it, where the default would end the process.
  ::fcntl(fd(), F_SETSIG, SIGURG);
  if (::fcntl(fd(), F_SETLEASE, F_RDLCK) != 0) return errno == EAGAIN;
  ::fcntl(fd(), F_SETLEASE, F_UNLCK);
  return false;
}

std::uint64_t File::resident_bytes(ByteRange range) const {
  return penstock::resident_bytes(fd(), range);
}

void File::check_unchanged() const {
  if (in_memory_) return;
  struct stat status {};
  if (::fstat(fd(), &status) != 0) throw_errno(path_, "cannot stat", errno);
  const FileIdentity now = identity_of(status);
  if (now.size != identity_.size) {
    throw Error(ErrorKind::kChanged,
                fmt::format("{}: changed while it was read: it had {} bytes when it was opened and has {} now", path_,
                            identity_.size, now.size));
  }
  if (now != identity_) {
    throw Error(ErrorKind::kChanged, fmt::format("{}: was written to while it was read", path_));
  }
}

}  // namespace penstock
