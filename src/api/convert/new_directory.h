// NewDirectory: a directory that appears under its name whole, or not at all, as python/penstock/_steps.py makes steps.
//
// ".NAME.saving-<16 hex digits>" is made beside the target, and held by a shared lock: files are written into it, and
// one rename gives it its name. A hidden directory that can be locked exclusively belongs to nobody any more. Move-only
// in spirit, one thread.
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
  const std::filesystem::path target_;
  std::filesystem::path path_;
  UniqueFd lock_;
  bool committed_ = false;
};

}  // namespace penstock
