// Hidden names of directories that appear as one, or are on their way out: the protocol of python/penstock/_steps.py.
//
// ".NAME.saving-<16 hex digits>" is being filled, ".NAME.replaced-<...>" was NAME until another took its place,
// ".NAME.removing-<...>" is being removed. Who is at work on one holds a shared flock on it; one that can be locked
// exclusively belongs to nobody any more.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace penstock {

std::string hidden_directory_name(std::string_view name, std::string_view why);

// "step" of ".step.saving-0123456789abcdef"; empty when it is no such name.
std::string_view target_of_hidden_directory(std::string_view name) noexcept;

// A lock on a directory while it is worked on. Nothing where it can't be opened; where the filesystem has no such locks
// the descriptor holds none.
UniqueFd hold_directory(int parent, const std::string& name);

struct DeadDirectory {
  std::string name;
  bool restored = false;  // what was put aside and never replaced has its name again; else it was removed
};

// Removes what dead processes left for those targets that `is_ours` says. What can't be removed is left.
std::vector<DeadDirectory> remove_dead_directories(int parent, const std::function<bool(std::string_view)>& is_ours);

}  // namespace penstock
