#include "api/convert/new_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "io/names.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

fs::path hidden_name(const fs::path& target, const char* why) {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) < 0) throw_errno(target.native(), "no random number for a name", errno);
  return parent_of(target) / fmt::format(".{}.{}-{:016x}", target.filename().native(), why, random);
}

UniqueFd open_directory(const fs::path& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

void remove_dead(const fs::path& target) {
  const std::string prefix = "." + target.filename().native() + ".saving-";
  std::vector<fs::path> found;
  std::error_code ignored;
  for (fs::directory_iterator it(parent_of(target), ignored), end; !ignored && it != end; it.increment(ignored)) {
    if (it->path().filename().native().starts_with(prefix)) found.push_back(it->path());
  }
  for (const fs::path& path : found) {
    const UniqueFd directory = open_directory(path);
    if (directory && ::flock(directory.get(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(path, ignored);
  }
}

bool lacks_flags(int error) {
  return error == EINVAL || error == ENOSYS || error == ENOTSUP;
}

}  // namespace

NewDirectory::NewDirectory(const fs::path& target) : target_(target) {
  remove_dead(target_);
  path_ = hidden_name(target_, "saving");
  if (::mkdir(path_.c_str(), 0777) != 0) throw_errno(target_.native(), "cannot make the directory", errno);
  lock_ = open_directory(path_);
  // Somebody may look for dead ones between the two. Some filesystems have no such locks.
  if (!lock_ || (::flock(lock_.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)) {
    throw_errno(target_.native(), "cannot hold the directory", errno);
  }
}

NewDirectory::~NewDirectory() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(path_, ignored);
}

void NewDirectory::commit(bool replace, bool durable) {
  fs::path old;
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE) != 0) {
    const bool is_there = errno == EEXIST || fs::exists(fs::symlink_status(target_));
    if (errno != EEXIST && !lacks_flags(errno)) throw_errno(target_.native(), "cannot rename", errno);
    if (is_there && !replace) throw_errno(target_.native(), "cannot rename", EEXIST);
    if (is_there && ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) {
      old = path_;
    } else {
      if (is_there) {
        old = hidden_name(target_, "replaced");
        if (::rename(target_.c_str(), old.c_str()) != 0) throw_errno(target_.native(), "cannot rename", errno);
      }
      if (::rename(path_.c_str(), target_.c_str()) != 0) {
        const int error = errno;
        if (is_there) ::rename(old.c_str(), target_.c_str());
        throw_errno(target_.native(), "cannot rename", error);
      }
    }
  }
  committed_ = true;
  std::error_code ignored;
  const fs::path parent = parent_of(target_);
  const UniqueFd directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (durable && directory) sync_directory(directory.get(), target_.native());
  lock_.reset();
  if (!old.empty()) fs::remove_all(old, ignored);
}

}  // namespace penstock
