// File: a regular file opened for reading, and what the kernel says about it: size, filesystem, what direct I/O needs,
// and which of its bytes are in the page cache.
//
// Move-only. Const functions are safe from several threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/fork.h"
#include "base/unique_fd.h"

namespace penstock {

// What O_DIRECT demands, in bytes; powers of two.
struct DirectAlignment {
  std::uint32_t memory = 4096;
  std::uint32_t offset = 4096;
};

// Enough of stat to tell whether a file is still the one that was opened.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t modified_nanoseconds = 0;

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

class File {
 public:
  // Throws Error when it does not exist, is a directory or no regular file, or may not be read.
  static File open(const std::filesystem::path& path);

  // A new one without a name, in memory, of `size` bytes that are zero until somebody writes to fd(). `path` is for
  // messages. Throws Error.
  static File in_memory(const std::string& path, std::uint64_t size);

  const std::string& path() const noexcept { return path_; }
  std::uint64_t size() const noexcept { return identity_.size; }
  int fd() const noexcept { return fd_.get(); }
  const FileIdentity& identity() const noexcept { return identity_; }

  // Fills `nbytes` at `data` through the page cache; throws Error when the file ends before.
  void read(std::uint64_t offset, void* data, std::size_t nbytes) const;

  // Reading ahead is off for headers, so that looking into a file leaves no more in the page cache than it read. Loads
  // through the page cache turn it on.
  void set_read_ahead(bool on) const noexcept;

  // Starts to read the range into the page cache, and does not wait for it.
  void prefetch(ByteRange range) const noexcept;

  // A second descriptor of the same file with O_DIRECT, and what it demands; an empty descriptor where the filesystem
  // refuses direct I/O. Opened when it is first asked for, and kept.
  struct Direct {
    UniqueFd fd;
    DirectAlignment alignment;
    bool reported = false;  // the alignment is what the kernel says, and not an assumption that a read confirmed
    std::string refusal;    // why there is no descriptor
    int error_number = 0;   // the same, where the system said so
  };
  const Direct& direct() const;

  // One direct read of `length` bytes, aligned as direct() says. False when it brought less than `minimum`.
  bool try_read_direct(std::uint64_t offset, void* data, std::size_t length, std::size_t minimum) const noexcept;

  // True for filesystems known to keep their pages on this machine: mapping them can't fail for a lost server.
  bool on_local_filesystem() const;

  // True when somebody, in this process or another, has it open for writing, as far as the kernel says: for files of
  // other users it may not.
  bool is_open_for_writing() const noexcept;

  // Bytes of the range that are in the page cache, in whole pages but at most the range's size.
  std::uint64_t resident_bytes(ByteRange range) const;

  // Throws Error(kChanged) when the file was written or truncated since it was opened. One in memory is its owner's.
  void check_unchanged() const;

 private:
  Direct open_direct() const;
  File(std::string path, UniqueFd fd, FileIdentity identity);

  std::string path_;
  UniqueFd fd_;
  FileIdentity identity_;
  bool in_memory_ = false;
  std::unique_ptr<MadeOnce<Direct>> direct_ = std::make_unique<MadeOnce<Direct>>();
};

// What the filesystem of `fd` says that direct I/O needs; nothing when it says that there is none. `reported`
// (optional) is set to false when the kernel could not tell and a probe has to.
std::optional<DirectAlignment> query_direct_alignment(int fd, bool* reported = nullptr);

}  // namespace penstock
