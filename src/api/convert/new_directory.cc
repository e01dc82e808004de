#include "api/convert/new_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "io/hidden_directories.h"
#include "io/names.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

UniqueFd open_parent(const fs::path& path) {
  UniqueFd fd(::open(parent_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw_errno(path.native(), "cannot make the directory", errno);
  return fd;
}

bool lacks_flags(int error) {
  return error == EINVAL || error == ENOSYS || error == ENOTSUP;
}

}  // namespace

NewDirectory::NewDirectory(const fs::path& target) : target_(target), parent_(open_parent(target)) {
  const std::string name = target_.filename().native();
  remove_dead_directories(parent_.get(), [&](std::string_view dead) { return dead == name; });
  while (!lock_) {
    path_ = parent_of(target_) / hidden_directory_name(name, "saving");
    if (::mkdir(path_.c_str(), 0777) != 0) throw_errno(target_.native(), "cannot make the directory", errno);
    lock_ = hold_directory(parent_.get(), path_.filename().native());
  }
}

NewDirectory::~NewDirectory() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(path_, ignored);
}

// Where nothing swaps two names: whoever is killed between the two renames leaves no target, and the next one who looks
// for dead directories gives the old one its name again. Nobody does so before that, as it is held.
fs::path NewDirectory::rename_in_two_steps() {
  const UniqueFd held = hold_directory(parent_.get(), target_.filename().native());
  const fs::path old = parent_of(target_) / hidden_directory_name(target_.filename().native(), "replaced");
  if (::rename(target_.c_str(), old.c_str()) != 0) throw_errno(target_.native(), "cannot rename", errno);
  if (::rename(path_.c_str(), target_.c_str()) != 0) {
    const int error = errno;
    ::rename(old.c_str(), target_.c_str());
    throw_errno(target_.native(), "cannot rename", error);
  }
  return old;
}

// Returns where the old one is now.
fs::path NewDirectory::rename(bool replace) {
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE) == 0) return {};
  if (errno != EEXIST && !lacks_flags(errno)) throw_errno(target_.native(), "cannot rename", errno);
  if (!fs::exists(fs::symlink_status(target_))) {
    if (::rename(path_.c_str(), target_.c_str()) != 0) throw_errno(target_.native(), "cannot rename", errno);
    return {};
  }
  if (!replace) throw_errno(target_.native(), "cannot rename", EEXIST);
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) return path_;
  return rename_in_two_steps();
}

void NewDirectory::commit(bool replace, bool durable) {
  const fs::path old = rename(replace);
  committed_ = true;
  std::error_code ignored;
  // Whatever the sync says, the old one has no name any more.
  const auto remove_old = [&] {
    lock_.reset();
    if (!old.empty()) fs::remove_all(old, ignored);
  };
  try {
    if (durable) sync_directory(parent_.get(), target_.native(), kSyncOfNameFailed);
  } catch (...) {
    remove_old();
    throw;
  }
  remove_old();
}

}  // namespace penstock
