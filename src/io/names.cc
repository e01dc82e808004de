#include "io/names.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/closing.h"
#include "io/filesystem.h"

namespace penstock {
namespace {

constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr std::size_t kTokenDigits = 16;

// Whether nobody is at work on it: if so, it is locked for as long as the descriptor is kept.
UniqueFd lock_dead(int directory, const std::string& name) {
  UniqueFd fd(::openat(directory, name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  return ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 ? std::move(fd) : UniqueFd();
}

}  // namespace

std::string_view file_name_of(std::string_view path) noexcept {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

NameIdentity name_identity(const struct stat& status) noexcept {
  return {status.st_ino, status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec};
}

std::optional<NameIdentity> find_name(int directory, const std::string& name) {
  struct stat status {};
  if (::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  if (!S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode)) return std::nullopt;
  return name_identity(status);
}

std::string temporary_name(std::string_view file_name) {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) < 0) random = static_cast<std::uint64_t>(::getpid());
  return fmt::format(".{}.{:016x}{}", file_name.substr(0, kMaxStem), random, kTemporarySuffix);
}

std::string_view target_of_temporary(std::string_view name) noexcept {
  const std::size_t tail = 1 + kTokenDigits + kTemporarySuffix.size();
  if (name.size() < tail + 2 || name.front() != '.' || !name.ends_with(kTemporarySuffix)) return {};
  const std::string_view token = name.substr(name.size() - tail, 1 + kTokenDigits);
  const auto is_hex = [](char digit) { return (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f'); };
  if (token.front() != '.' || !std::all_of(token.begin() + 1, token.end(), is_hex)) return {};
  return name.substr(1, name.size() - tail - 1);
}

bool mark_in_use(int fd) noexcept {
  return ::flock(fd, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

void mark_done(int fd) noexcept {
  ::flock(fd, LOCK_UN);
}

std::vector<std::string> list_names(int directory) {
  std::vector<std::string> names;
  const int fd = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return names;
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(fd), &::closedir);
  if (stream == nullptr) {
    ::close(fd);
    return names;
  }
  while (const dirent* entry = ::readdir(stream.get())) {
    names.emplace_back(entry->d_name);
  }
  return names;
}

std::vector<std::string> remove_dead_temporaries(int directory, const std::function<bool(std::string_view)>& is_ours) {
  std::vector<std::string> gone;
  const bool locks_are_known_to_all = on_local_filesystem(directory);
  for (const std::string& name : list_names(directory)) {
    const std::string_view target = target_of_temporary(name);
    if (target.empty() || (!locks_are_known_to_all && !is_ours(target))) continue;
    const UniqueFd dead = lock_dead(directory, name);
    if (dead && remove_name(directory, name)) gone.push_back(name);
  }
  return gone;
}

// Not over a network, where a file that is held is given another name in place of being removed.
UniqueFd hold(int directory, const std::string& name) {
  if (!on_local_filesystem(directory)) return {};
  return UniqueFd(::openat(directory, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
}

void let_go(UniqueFd file) {
  if (file && frees_much(file.get())) close_in_background(std::move(file));
}

bool remove_name(int directory, const std::string& name) {
  UniqueFd held = hold(directory, name);
  const bool removed = ::unlinkat(directory, name.c_str(), 0) == 0;
  if (removed) let_go(std::move(held));
  return removed;
}

void sync_directory(int directory, std::string_view path, std::string_view failure) {
  // Some network filesystems have no fsync for directories; there a rename is as durable as they make it.
  if (::fsync(directory) != 0 && errno != EINVAL && errno != ENOTSUP) {
    throw_errno(path, failure, errno);
  }
}

}  // namespace penstock
