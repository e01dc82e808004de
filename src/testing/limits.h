// What happens where the system allows little.
#pragma once

#include <functional>
#include <optional>

namespace penstock::testing {

// Runs `action` in a child process that can start no thread, and gives what it returned (0 to 100). The child of a root
// process is nobody. Nothing where that can't be arranged.
std::optional<int> run_without_threads(const std::function<int()>& action);

}  // namespace penstock::testing
