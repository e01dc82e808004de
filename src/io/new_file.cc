#include "io/new_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "io/closing.h"
#include "io/filesystem.h"

namespace penstock {
namespace {

constexpr mode_t kNewMode = 0666;  // less the umask
constexpr int kNameAttempts = 16;

std::string temporary_name(std::string_view file_name) {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) < 0) random = static_cast<std::uint64_t>(::getpid());
  // A name has 255 bytes at most; this one must fit whatever the target's is.
  return fmt::format(".{}.{:016x}.tmp", file_name.substr(0, 200), random);
}

std::string_view file_name_of(std::string_view target) {
  const std::size_t slash = target.rfind('/');
  return slash == std::string_view::npos ? target : target.substr(slash + 1);
}

// Of an ext4 filesystem, which may have been made without one. Unknown counts as none.
bool has_journal(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return false;
  const auto link = fmt::format("/sys/dev/block/{}:{}", major(status.st_dev), minor(status.st_dev));
  std::error_code unknown;
  const auto device = std::filesystem::read_symlink(link, unknown).filename();
  if (unknown || device.empty()) return false;
  int journal_task = 0;  // the file says "<none>" where there is no journal
  return static_cast<bool>(std::ifstream("/sys/fs/ext4" / device / "journal_task") >> journal_task);
}

// True for filesystems with one journal, in which a new name never overtakes the inode that it leads to.
bool journals_directories(int fd) {
  constexpr auto kExt4 = 0xEF53;
  constexpr auto kXfs = 0x58465342;
  struct statfs status {};
  if (::fstatfs(fd, &status) != 0) return false;
  return status.f_type == kXfs || (status.f_type == kExt4 && has_journal(fd));
}

// Keeps what a rename is about to replace from being freed by it. Not over a network, where a file that is held is
// given another name in place of being removed.
UniqueFd hold(int directory, const std::string& name) {
  if (!on_local_filesystem(directory)) return {};
  return UniqueFd(::openat(directory, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
}

void let_go(UniqueFd file) {
  if (file && frees_much(file.get())) close_in_background(std::move(file));
}

std::optional<std::uint64_t> available_space(int fd) {
  struct statvfs status {};
  if (::fstatvfs(fd, &status) != 0) return std::nullopt;
  return std::uint64_t{status.f_bavail} * status.f_frsize;
}

// 0, or why not.
int reserve_space(int fd, std::uint64_t nbytes) {
  int result = 0;
  do {
    result = ::fallocate(fd, 0, 0, static_cast<off_t>(nbytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return 0;
  if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) return errno;
  return available_space(fd).value_or(nbytes) >= nbytes ? 0 : ENOSPC;
}

bool no_tmpfile_here(int error_number) {
  return error_number == EOPNOTSUPP || error_number == EISDIR || error_number == EINVAL || error_number == ENOENT;
}

}  // namespace

NewFile::NewFile(std::string target, UniqueFd directory, UniqueFd fd, std::string temporary)
    : target_(std::move(target)),
      directory_(std::move(directory)),
      fd_(std::move(fd)),
      temporary_(std::move(temporary)) {}

NewFile::NewFile(NewFile&& other) noexcept
    : target_(std::move(other.target_)),
      directory_(std::move(other.directory_)),
      fd_(std::move(other.fd_)),
      temporary_(std::exchange(other.temporary_, {})),
      fresh_name_(other.fresh_name_) {}

NewFile::~NewFile() {
  if (directory_ && !temporary_.empty()) ::unlinkat(directory_.get(), temporary_.c_str(), 0);
  struct stat status {};
  const bool given_up = fd_ && ::fstat(fd(), &status) == 0 && status.st_nlink == 0;
  if (given_up) let_go(std::move(fd_));
}

NewFile NewFile::create(const std::filesystem::path& target) {
  return create(target, /*named=*/false);
}

NewFile NewFile::create_named(const std::filesystem::path& target) {
  return create(target, /*named=*/true);
}

NewFile NewFile::join(const std::filesystem::path& target, const std::string& temporary) {
  if (temporary.empty() || temporary.find('/') != std::string::npos) {
    throw_argument("{}: {} can't be the name of its temporary file", target.native(), in_quotes(temporary));
  }
  const auto parent = target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");
  UniqueFd directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) throw_errno(target.native(), fmt::format("cannot open the directory {}", parent.native()), errno);
  UniqueFd fd(::openat(directory.get(), temporary.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) throw_errno(target.native(), fmt::format("cannot open the temporary file {}", temporary), errno);
  return NewFile(target.native(), std::move(directory), std::move(fd), {});
}

NewFile NewFile::create(const std::filesystem::path& target, bool named) {
  if (!target.has_filename()) throw_argument("{}: names no file to write", in_quotes(target.native()));
  const auto parent = target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");
  struct stat status {};
  if (::lstat(target.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode)) {
    if (S_ISDIR(status.st_mode)) throw_errno(target.native(), "cannot write", EISDIR);
    throw_argument("{}: exists and is not a regular file; it is not replaced", target.native());
  }
  UniqueFd directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) throw_errno(target.native(), fmt::format("cannot open the directory {}", parent.native()), errno);

  UniqueFd fd;
  if (!named) fd.reset(::openat(directory.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, kNewMode));
  std::string temporary;
  if (named || (!fd && no_tmpfile_here(errno))) {
    for (int attempt = 0; !fd && attempt < kNameAttempts; ++attempt) {
      temporary = temporary_name(file_name_of(target.native()));
      fd.reset(::openat(directory.get(), temporary.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, kNewMode));
      if (!fd && errno != EEXIST) break;
    }
  }
  if (!fd) throw_errno(target.native(), fmt::format("cannot create a file in {}", parent.native()), errno);
  NewFile file(target.native(), std::move(directory), std::move(fd), std::move(temporary));
  file.take_mode_of_target();
  return file;
}

void NewFile::take_mode_of_target() {
  struct stat status {};
  const std::string name(file_name_of(target_));
  if (::fstatat(directory_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) return;
  if (::fchmod(fd(), status.st_mode & 07777) != 0)
    throw_errno(target_, "cannot give the new file the old one's mode", errno);
}

std::optional<DirectAlignment> NewFile::use_direct() {
  bool reported = false;
  const auto alignment = query_direct_alignment(fd(), &reported);
  const int flags = ::fcntl(fd(), F_GETFL);
  if (!alignment || flags < 0 || ::fcntl(fd(), F_SETFL, flags | O_DIRECT) != 0) return std::nullopt;
  if (reported || takes_direct_writes()) return alignment;
  use_buffered();
  return std::nullopt;
}

// Filesystems that don't report their alignment are asked by a write that the data will replace.
bool NewFile::takes_direct_writes() const {
  constexpr std::size_t kProbe = 4096;
  std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(kProbe, kProbe), &std::free);
  if (buffer == nullptr) return false;
  std::memset(buffer.get(), 0, kProbe);
  return ::pwrite(fd(), buffer.get(), kProbe, 0) == static_cast<ssize_t>(kProbe);
}

void NewFile::use_buffered() {
  const int flags = ::fcntl(fd(), F_GETFL);
  if (flags >= 0) ::fcntl(fd(), F_SETFL, flags & ~O_DIRECT);
}

void NewFile::reserve(std::uint64_t nbytes) {
  if (nbytes == 0) return;
  int error_number = reserve_space(fd(), nbytes);
  if (error_number != 0 && errno_kind(error_number) == ErrorKind::kNoSpace) {
    // What earlier saves replaced may still be on its way out.
    wait_for_closing();
    error_number = reserve_space(fd(), nbytes);
  }
  if (error_number == 0) return;
  if (errno_kind(error_number) == ErrorKind::kNoSpace) {
    throw Error(ErrorKind::kNoSpace,
                fmt::format("{}: needs {} bytes, the filesystem has {} available: {}", target_, nbytes,
                            available_space(fd()).value_or(0), errno_text(error_number)),
                error_number);
  }
  throw_errno(target_, fmt::format("cannot reserve {} bytes", nbytes), error_number);
}

void NewFile::write(std::uint64_t offset, const void* data, std::size_t nbytes) {
  const auto* next = static_cast<const std::byte*>(data);
  bool waited = false;  // for what earlier saves replaced
  while (nbytes > 0) {
    const ssize_t count = ::pwrite(fd(), next, nbytes, static_cast<off_t>(offset));
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0 && errno_kind(errno) == ErrorKind::kNoSpace && !std::exchange(waited, true)) {
      wait_for_closing();
      continue;
    }
    if (count <= 0) {
      throw_errno(target_, fmt::format("write of {} bytes at offset {} failed", nbytes, offset),
                  count < 0 ? errno : EIO);
    }
    next += count;
    offset += static_cast<std::uint64_t>(count);
    nbytes -= static_cast<std::size_t>(count);
  }
}

void NewFile::sync() {
  if (::fsync(fd()) != 0) throw_errno(target_, "sync failed, the data may not have reached the drive", errno);
}

void NewFile::finish(std::uint64_t size, bool durable) {
  if (::ftruncate(fd(), static_cast<off_t>(size)) != 0)
    throw_errno(target_, fmt::format("cannot set the size to {}", size), errno);
  if (durable) sync();
}

bool NewFile::link_as(const std::string& name) {
  const std::string unnamed = fmt::format("/proc/self/fd/{}", fd());
  return ::linkat(AT_FDCWD, unnamed.c_str(), directory_.get(), name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

void NewFile::link_temporary() {
  for (int attempt = 0; attempt < kNameAttempts; ++attempt) {
    std::string candidate = temporary_name(file_name_of(target_));
    if (link_as(candidate)) {
      temporary_ = std::move(candidate);
      return;
    }
    if (errno != EEXIST) break;
  }
  throw_errno(target_, "cannot name the new file", errno);
}

void NewFile::take_name() {
  struct stat status {};
  if (::fstat(fd(), &status) != 0) throw_errno(target_, "cannot ask for its names", errno);
  if (status.st_nlink > 0) return;
  link_temporary();
  const int flags = ::fcntl(fd(), F_GETFL) & O_DIRECT;
  UniqueFd by_name(::openat(directory_.get(), temporary_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags));
  if (!by_name) throw_errno(target_, fmt::format("cannot open the temporary file {}", temporary_), errno);
  fd_ = std::move(by_name);
}

void NewFile::publish() {
  const std::string name(file_name_of(target_));
  if (temporary_.empty()) {
    // A name that is free is taken at once; only an existing target needs the detour of a rename.
    fresh_name_ = link_as(name);
    if (fresh_name_) return;
    if (errno != EEXIST) throw_errno(target_, "cannot name the new file", errno);
    link_temporary();
  } else if (::renameat2(directory_.get(), temporary_.c_str(), directory_.get(), name.c_str(), RENAME_NOREPLACE) == 0) {
    temporary_.clear();
    fresh_name_ = true;
    return;
  }
  UniqueFd replaced = hold(directory_.get(), name);
  if (::renameat(directory_.get(), temporary_.c_str(), directory_.get(), name.c_str()) != 0) {
    throw_errno(target_, "cannot rename the new file into place", errno);
  }
  temporary_.clear();
  let_go(std::move(replaced));
}

void NewFile::withdraw() noexcept {
  if (fresh_name_) ::unlinkat(directory_.get(), std::string(file_name_of(target_)).c_str(), 0);
}

void NewFile::sync_name() {
  // A file that had no name when it was synced is not kept by every filesystem (btrfs, ext4 without a journal) until it
  // is synced again. Where a sync of the directory writes the whole journal, that is enough.
  if (!journals_directories(fd()) && ::fsync(fd()) != 0)
    throw_errno(target_, "sync failed, the data may not have reached the drive", errno);
  // Some network filesystems have no fsync for directories; there the rename is as durable as they make it.
  if (::fsync(directory_.get()) != 0 && errno != EINVAL && errno != ENOTSUP) {
    throw_errno(target_, "sync of the directory failed, the new name may not be durable", errno);
  }
}

}  // namespace penstock
