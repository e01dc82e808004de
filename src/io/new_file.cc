#include "io/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/closing.h"

namespace penstock {
namespace {

constexpr mode_t kNewMode = 0666;      // less the umask
constexpr mode_t kPermissions = 0777;  // without set-user-id and its like
constexpr int kNameAttempts = 16;
constexpr std::uint64_t kZeros = 1 << 20;

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

std::optional<std::uint64_t> available_space(int fd) {
  struct statvfs status {};
  if (::fstatvfs(fd, &status) != 0) return std::nullopt;
  return std::uint64_t{status.f_bavail} * status.f_frsize;
}

// For a file of that size: what is free, and what the file has, as on ext4 after a fallocate() that failed half-way.
std::uint64_t available_for(int fd) {
  constexpr std::uint64_t kUnit = 512;  // of st_blocks
  struct stat status {};
  const std::uint64_t owned = ::fstat(fd, &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * kUnit : 0;
  return available_space(fd).value_or(0) + owned;
}

// 0, or why not. `reserved` is false where only the free space could be asked for.
int reserve_space(int fd, std::uint64_t nbytes, bool& reserved) {
  int result = 0;
  do {
    result = ::fallocate(fd, 0, 0, static_cast<off_t>(nbytes));
  } while (result != 0 && errno == EINTR);
  reserved = result == 0;
  if (reserved) return 0;
  if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) return errno;
  return available_space(fd).value_or(nbytes) >= nbytes ? 0 : ENOSPC;
}

// A hidden file of its own. Nothing, with errno, when it can't be made.
UniqueFd create_hidden(int directory, std::string_view file_name, std::string& temporary) {
  UniqueFd fd;
  for (int attempt = 0; attempt < kNameAttempts; ++attempt) {
    temporary = temporary_name(file_name);
    fd.reset(::openat(directory, temporary.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, kNewMode));
    if (!fd && errno != EEXIST) break;
    struct stat status {};
    // Until it is marked it looks like one that a dead process left: somebody may have removed it.
    if (fd && mark_in_use(fd.get()) && ::fstat(fd.get(), &status) == 0 && status.st_nlink > 0) break;
    fd.reset();
  }
  return fd;
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
  const bool is_taken = ::lstat(target.c_str(), &status) == 0;
  // An unnamed file would only meet it when all is written.
  if (!is_taken && errno == ENAMETOOLONG) throw_errno(target.native(), "cannot write", errno);
  if (is_taken && !S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode)) {
    if (S_ISDIR(status.st_mode)) throw_errno(target.native(), "cannot write", EISDIR);
    throw_argument("{}: exists and is not a regular file; it is not replaced", target.native());
  }
  UniqueFd directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) throw_errno(target.native(), fmt::format("cannot open the directory {}", parent.native()), errno);

  UniqueFd fd;
  if (!named) fd.reset(::openat(directory.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, kNewMode));
  std::string temporary;
  if (named || (!fd && no_tmpfile_here(errno))) {
    fd = create_hidden(directory.get(), file_name_of(target.native()), temporary);
  }
  if (!fd) throw_errno(target.native(), fmt::format("cannot create a file in {}", parent.native()), errno);
  NewFile file(target.native(), std::move(directory), std::move(fd), std::move(temporary));
  file.take_mode_of(std::string(file_name_of(target.native())));
  return file;
}

void NewFile::take_mode_of(const std::string& name) {
  struct stat old {};
  struct stat ours {};
  if (::fstatat(directory_.get(), name.c_str(), &old, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(old.st_mode)) return;
  if (::fstat(fd(), &ours) != 0) throw_errno(target_, "cannot ask for the new file's mode", errno);
  mode_t mode = old.st_mode & kPermissions;
  // Whoever may add files to the directory could have left one there that is open to all: ours isn't for that.
  if (old.st_uid != ours.st_uid) mode &= ours.st_mode;
  if (::fchmod(fd(), mode) != 0) throw_errno(target_, "cannot give the new file the old one's mode", errno);
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
  try_reserve(nbytes);
}

void NewFile::allocate(std::uint64_t nbytes) {
  if (try_reserve(nbytes)) return;
  const std::vector<std::byte> zeros(std::min(nbytes, kZeros));
  for (std::uint64_t done = 0; done < nbytes; done += zeros.size()) {
    write(done, zeros.data(), std::min<std::uint64_t>(nbytes - done, zeros.size()));
  }
}

// Whether the space is taken, and not only likely to be there.
bool NewFile::try_reserve(std::uint64_t nbytes) {
  if (nbytes == 0) return true;
  bool reserved = false;
  int error_number = reserve_space(fd(), nbytes, reserved);
  if (error_number != 0 && errno_kind(error_number) == ErrorKind::kNoSpace) {
    // What earlier saves replaced may still be on its way out.
    wait_for_closing();
    error_number = reserve_space(fd(), nbytes, reserved);
  }
  if (error_number == 0) return reserved;
  if (errno_kind(error_number) == ErrorKind::kNoSpace) {
    throw Error(ErrorKind::kNoSpace,
                fmt::format("{}: needs {} bytes, the filesystem has {} available: {}", target_, nbytes,
                            available_for(fd()), errno_text(error_number)),
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
  mark_in_use(fd());
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
  mark_in_use(by_name.get());
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
    lose_temporary();
    fresh_name_ = true;
    return;
  }
  UniqueFd replaced = hold(directory_.get(), name);
  if (::renameat(directory_.get(), temporary_.c_str(), directory_.get(), name.c_str()) != 0) {
    throw_errno(target_, "cannot rename the new file into place", errno);
  }
  lose_temporary();
  let_go(std::move(replaced));
}

void NewFile::publish_as(const std::string& name) {
  target_ = (std::filesystem::path(target_).parent_path() / name).native();
  if (temporary_.empty()) {
    fresh_name_ = link_as(name);
  } else {
    fresh_name_ = rename_to_free(name);
    if (fresh_name_) lose_temporary();
  }
  if (!fresh_name_) throw_errno(target_, "cannot name the new file", errno);
}

bool NewFile::rename_to_free(const std::string& name) {
  const int directory = directory_.get();
  if (::renameat2(directory, temporary_.c_str(), directory, name.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) return false;
  // A filesystem that can't look and rename in one.
  if (::faccessat(directory, name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
    errno = EEXIST;
    return false;
  }
  return ::renameat(directory, temporary_.c_str(), directory, name.c_str()) == 0;
}

void NewFile::lose_temporary() noexcept {
  temporary_.clear();
  mark_done(fd());
}

NameIdentity NewFile::identity() const {
  struct stat status {};
  if (::fstat(fd(), &status) != 0) throw_errno(target_, "cannot ask for its number", errno);
  return name_identity(status);
}

void NewFile::withdraw() noexcept {
  if (!fresh_name_) return;
  ::unlinkat(directory_.get(), std::string(file_name_of(target_)).c_str(), 0);
  fresh_name_ = false;
}

void NewFile::sync_name() {
  sync_named("is in place under its name, but may not survive a power cut: its sync failed");
  sync_directory(directory_.get(), target_, kSyncOfNameFailed);
}

void NewFile::sync_named(std::string_view failure) {
  // A file that had no name when it was synced is not kept by every filesystem (btrfs, ext4 without a journal) until it
  // is synced again. Where a sync of the directory writes the whole journal, that is enough.
  if (!journals_directories(fd()) && ::fsync(fd()) != 0) throw_errno(target_, failure, errno);
}

}  // namespace penstock
