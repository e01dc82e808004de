// Names in a directory: the hidden ones of files that are being written, and how names go.
//
// A hidden temporary is called ".TARGET.<16 hex digits>.tmp", and who writes it holds a shared flock on it. One that
// can be locked exclusively belongs to nobody any more: its writer was killed. Where a filesystem has no locks none is
// ever taken for dead.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace penstock {

// The last part of a path.
std::string_view file_name_of(std::string_view path) noexcept;

// Which file a name leads to: a name that is given to another one, or is written to, leads to something else.
struct NameIdentity {
  std::uint64_t inode = 0;
  std::int64_t modified_nanoseconds = 0;
  friend bool operator==(const NameIdentity&, const NameIdentity&) = default;
};

NameIdentity name_identity(const struct stat& status) noexcept;

// Of a regular file or a symbolic link, which is not followed; nothing for others and where there is none.
std::optional<NameIdentity> find_name(int directory, const std::string& name);

// A hidden name for a file that is going to be called `file_name`; another one each time. It has at most kMaxStem bytes
// of the file's, so that it fits.
inline constexpr std::size_t kMaxStem = 200;
std::string temporary_name(std::string_view file_name);

// What file a hidden name is for; empty when it is no such name.
std::string_view target_of_temporary(std::string_view name) noexcept;

// Says that a process is at work on the file for as long as `fd` is open. False when somebody removes it right now.
bool mark_in_use(int fd) noexcept;
void mark_done(int fd) noexcept;

// Removes the temporaries of dead processes, and returns the names of those that are gone: on a local filesystem all,
// elsewhere, where a lock may be known to one machine only, for those targets that `is_ours` says.
std::vector<std::string> remove_dead_temporaries(int directory, const std::function<bool(std::string_view)>& is_ours);

// Takes a file's name away, but never a directory's. Freeing what it held is left to a thread where that takes long.
// False when there is no such name any more or it can't be removed.
bool remove_name(int directory, const std::string& name);

// All names in the directory; none where it can't be read.
std::vector<std::string> list_names(int directory);

// Keeps what a rename is about to replace from being freed by it, and lets it go on a thread.
UniqueFd hold(int directory, const std::string& name);
void let_go(UniqueFd file);

// What an error says when the name was given and only its sync failed.
inline constexpr std::string_view kSyncOfNameFailed =
    "is in place under its name, but may not survive a power cut: the sync of its directory failed";

// Makes names of the directory durable. Throws Error that names `path` and says `failure`.
void sync_directory(int directory, std::string_view path, std::string_view failure = "sync of its directory failed");

}  // namespace penstock
