// NewFile: a file that appears under its name whole, or not at all.
//
// The protocol: an unnamed file in the target's directory (O_TMPFILE; a hidden named one where the filesystem has none)
// -> data -> fsync -> its name (by way of a temporary one and a rename where the name is taken) -> fsync of file and
// directory. Whatever fails, the target is what it was and the temporary is gone; an unnamed file does not even survive
// SIGKILL. A hidden name that did is removed by the next save (see io/names.h).
//
// Move-only, one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "io/file.h"
#include "io/names.h"

namespace penstock {

class NewFile {
 public:
  // Throws Error when the directory does not exist or can't be written to, or the target is a directory.
  static NewFile create(const std::filesystem::path& target);

  // As create(), but under a hidden name from the start, so that other processes can join() and fill it in too. A
  // process that only joined never gives it a name and never removes it.
  static NewFile create_named(const std::filesystem::path& target);
  static NewFile join(const std::filesystem::path& target, const std::string& temporary);
  const std::string& temporary() const noexcept { return temporary_; }

  // Gives an unnamed file a hidden name now, and a descriptor that was opened by it: for those who open files by name.
  void take_name();

  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) noexcept = delete;
  ~NewFile();

  const std::string& path() const noexcept { return target_; }
  int fd() const noexcept { return fd_.get(); }

  // Turns direct I/O on; nothing where the filesystem refuses it. Off again for small patches.
  std::optional<DirectAlignment> use_direct();
  void use_buffered();

  // Reserves space, so that a full disk is met now and extents are few. Throws Error(kNoSpace). Where the filesystem
  // can't reserve, the free space is asked for.
  void reserve(std::uint64_t nbytes);
  // The same for a file that is going to be filled through a mapping, where a full disk would be a signal: a filesystem
  // that can't reserve is given zeros.
  void allocate(std::uint64_t nbytes);

  // Fills in at `offset` through the page cache.
  void write(std::uint64_t offset, const void* data, std::size_t nbytes);

  // Syncs what this process wrote.
  void sync();

  // Sets the final size and, when asked to, syncs. Throws Error; a failed sync is never tried again.
  void finish(std::uint64_t size, bool durable);

  // Gives it its name, replacing what had it. After finish().
  void publish();

  // The same under another name in the directory, which must be free.
  void publish_as(const std::string& name);

  // Makes the name durable. After publish(). An error says that the file is in place all the same.
  void sync_name();
  // The part of it that is the file's own: for several files, whose directory is synced once.
  void sync_named(std::string_view failure = "sync failed, the data may not have reached the drive");

  // Takes the name away again, where this file was the first to have it: for a save of several files of which one
  // failed.
  void withdraw() noexcept;

  // Gives it the permissions of the regular file of this name in the directory, if there is one. Of a file that belongs
  // to somebody else it takes no more than the umask leaves.
  void take_mode_of(const std::string& name);

  // What find_name() is going to say of it once it has its name. After finish().
  NameIdentity identity() const;
  int directory() const noexcept { return directory_.get(); }

 private:
  static NewFile create(const std::filesystem::path& target, bool named);
  NewFile(std::string target, UniqueFd directory, UniqueFd fd, std::string temporary);

  bool try_reserve(std::uint64_t nbytes);
  bool link_as(const std::string& name);
  bool rename_to_free(const std::string& name);
  void link_temporary();
  void lose_temporary() noexcept;
  bool takes_direct_writes() const;

  std::string target_;
  UniqueFd directory_;
  UniqueFd fd_;
  std::string temporary_;    // its name in the directory while it has one
  bool fresh_name_ = false;  // published under a name that was free
};

}  // namespace penstock
