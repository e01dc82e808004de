// What happens where the system allows little.
#pragma once

#include <functional>
#include <optional>

namespace penstock::testing {

// Runs `action` in a child process that can have this many threads beside its first, and gives what it returned (0 to
// 100). The child of a root process is an ordinary user. Nothing where that can't be arranged.
std::optional<int> run_with_threads(unsigned count, const std::function<int()>& action);

inline std::optional<int> run_without_threads(const std::function<int()>& action) {
  return run_with_threads(0, action);
}

}  // namespace penstock::testing
