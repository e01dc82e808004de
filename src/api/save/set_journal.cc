#include "api/save/set_journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <set>
#include <utility>

#include "api/save/set_files.h"
#include "base/error.h"
#include "format/detect.h"
#include "format/seal.h"
#include "format/shards.h"
#include "io/names.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxText = 100'000'000;
constexpr int kOpenAttempts = 10;

// Nobody writes an empty file of a journal's name but a saver; it is known by what it would save.
bool is_journal_text(const std::string& text, const fs::path& set) {
  if (!text.empty()) return is_change_text(text);
  const auto suffixes = data_suffixes();
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [&](std::string_view suffix) { return set.native().ends_with(suffix); });
}

}  // namespace

SetJournal::SetJournal(const fs::path& set) : set_(set), name_(journal_file_name(set.filename().native())) {
  const fs::path parent = directory_of(set);
  directory_.reset(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory_) throw_errno(set.native(), fmt::format("cannot open the directory {}", parent.native()), errno);
  for (lock(); recover() || !writable_; lock()) {
    if (::unlinkat(directory_.get(), name_.c_str(), 0) != 0 && errno != ENOENT) {
      throw_errno(set.native(), fmt::format("cannot remove {}, which a killed save left", name_), errno);
    }
  }
}

SetJournal::SetJournal(const fs::path& set, UniqueFd directory, UniqueFd file)
    : set_(set),
      name_(journal_file_name(set.filename().native())),
      directory_(std::move(directory)),
      file_(std::move(file)),
      recorded_(true) {}

std::vector<std::string> SetJournal::remove_dead(const fs::path& set) {
  const std::string name = journal_file_name(set.filename().native());
  UniqueFd directory(::open(directory_of(set).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return {};
  UniqueFd file(::openat(directory.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return {};
  SetJournal journal(set, std::move(directory), std::move(file));
  if (!journal.is_named() || !is_journal_text(journal.read_text(), set)) return {};
  journal.recover();
  if (::unlinkat(journal.directory(), name.c_str(), 0) == 0) journal.recovered_.push_back(name);
  return std::move(journal.recovered_);
}

SetJournal::~SetJournal() {
  if (!recorded_) finish();
  // Said, and not left to close(): a child of fork() may have a copy of the descriptor, which would keep the lock.
  if (file_) ::flock(file_.get(), LOCK_UN);
}

bool SetJournal::exists(const fs::path& set) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(directory_of(set) / journal_file_name(set.filename().native()), ignored));
}

// Another user's can be locked and read, if not written to.
UniqueFd SetJournal::open_journal() {
  constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  for (int attempt = 0; attempt < kOpenAttempts; ++attempt) {
    UniqueFd fd(::openat(directory_.get(), name_.c_str(), O_CREAT | O_RDWR | kFlags, 0666));
    writable_ = static_cast<bool>(fd);
    if (fd || errno != EACCES) return fd;
    fd.reset(::openat(directory_.get(), name_.c_str(), O_RDONLY | kFlags));
    if (fd || errno != ENOENT) return fd;
  }
  errno = EACCES;  // there is none, and none can be made
  return {};
}

// Who held it before may have removed it while this one waited: then it is locked, but no longer the one to lock.
void SetJournal::lock() {
  for (;;) {
    file_ = open_journal();
    if (!file_) throw_errno(set_.native(), fmt::format("cannot open {}", name_), errno);
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0) throw_errno(set_.native(), fmt::format("cannot read {}", name_), errno);
    if (!S_ISREG(status.st_mode)) {
      file_.reset();
      throw_argument("{}: {} is not a regular file", set_.native(), name_);
    }
    int result = 0;
    do {
      result = ::flock(file_.get(), LOCK_EX);
    } while (result != 0 && errno == EINTR);
    if (result != 0 && !writable_) throw_errno(set_.native(), fmt::format("cannot lock {}", name_), errno);
    // Where a filesystem has no locks, saves of one name at one time are the caller's to avoid.
    if (is_named()) return;
  }
}

bool SetJournal::is_named() const {
  struct stat status {};
  const auto named = find_name(directory_.get(), name_);
  return named && ::fstat(file_.get(), &status) == 0 && named->inode == status.st_ino;
}

std::string SetJournal::read_text() const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw_errno(set_.native(), fmt::format("cannot read {}", name_), errno);
  std::string text(std::min(static_cast<std::uint64_t>(status.st_size), kMaxText), '\0');
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::pread(file_.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw_errno(set_.native(), fmt::format("cannot read {}", name_), count < 0 ? errno : EIO);
    done += static_cast<std::size_t>(count);
  }
  return text;
}

// Others may have saved here since, over the very same files. And whatever a journal says, it is about files of a kind.
void SetJournal::keep_used(std::vector<SetEntry>& dead) const {
  const auto used = read_index_files(directory_of(set_) / index_file_name(set_.filename().native()));
  if (!used) return dead.clear();
  std::set<std::string> kept = files_of_other_sets(set_);
  kept.insert(used->begin(), used->end());
  std::erase_if(dead, [&](const SetEntry& entry) {
    const std::string file(sealed_file_name(entry.name));  // a seal goes where its file goes
    return kept.contains(file) || fs::path(file).extension() != set_.extension();
  });
}

// Where everybody may add files and nobody may remove another's, a journal of somebody else would have us remove ours.
// One that has a second name may be any file.
bool SetJournal::is_trusted() const {
  struct stat journal {};
  struct stat parent {};
  if (::fstat(file_.get(), &journal) != 0 || ::fstat(directory_.get(), &parent) != 0) {
    throw_errno(set_.native(), fmt::format("cannot read {}", name_), errno);
  }
  if (journal.st_nlink > 1) return false;
  const bool is_sticky = (parent.st_mode & S_ISVTX) != 0;
  return !is_sticky || journal.st_uid == ::geteuid() || journal.st_uid == parent.st_uid;
}

// Removes what a dead saver left. False when there was none.
bool SetJournal::recover() {
  if (!is_trusted()) return true;  // it goes, and nothing else
  const std::string text = read_text();
  if (text.empty()) return false;
  const SetChange change = parse_change(text);
  std::vector<SetEntry> dead = is_there(directory_.get(), change.index) ? change.vanish : change.appear;
  if (!dead.empty()) keep_used(dead);
  std::erase_if(dead, [&](const SetEntry& entry) { return !is_there(directory_.get(), entry); });
  remove_entries(directory_.get(), dead);
  for (const SetEntry& entry : dead) {
    if (!is_there(directory_.get(), entry)) recovered_.push_back(entry.name);
  }
  // The journal must not go before them in a power cut.
  if (!dead.empty()) sync_directory(directory_.get(), set_.native());
  return true;
}

void SetJournal::record(const SetChange& change, bool durable) {
  const std::string text = encode_change(change);
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::pwrite(file_.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw_errno(set_.native(), fmt::format("cannot write {}", name_), count < 0 ? errno : EIO);
    done += static_cast<std::size_t>(count);
  }
  if (durable) {
    if (::fsync(file_.get()) != 0) throw_errno(set_.native(), fmt::format("sync of {} failed", name_), errno);
    sync_directory(directory_.get(), set_.native());
  }
  recorded_ = true;
}

void SetJournal::finish() noexcept {
  if (!file_) return;
  ::unlinkat(directory_.get(), name_.c_str(), 0);
  ::flock(file_.get(), LOCK_UN);
  file_.reset();
}

}  // namespace penstock
