// NewDirectory: a directory that appears under its name whole, or not at all, as python/penstock/_steps.py makes steps.
//
// A hidden directory is made beside the target (io/hidden_directories.h), and held by a lock: files are written into
// it, and one rename gives it its name. One thread.
#pragma once

#include <filesystem>

#include "base/unique_fd.h"

namespace penstock {

class NewDirectory {
 public:
  // Removes what dead processes have left of this name, and makes the hidden directory. Throws Error.
  explicit NewDirectory(const std::filesystem::path& target);
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;
  // Without a commit all of it is removed.
  ~NewDirectory();

  const std::filesystem::path& path() const noexcept { return path_; }

  // Gives it its name; its files are durable, or need not be. `replace`: what had the name is removed. Else that is an
  // error. `durable`: waits until the drive has the name.
  void commit(bool replace, bool durable);

 private:
  std::filesystem::path rename(bool replace);
  std::filesystem::path rename_in_two_steps();

  const std::filesystem::path target_;
  const UniqueFd parent_;
  std::filesystem::path path_;
  UniqueFd lock_;
  bool committed_ = false;
};

}  // namespace penstock
