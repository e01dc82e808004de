#include "testing/limits.h"

#include <grp.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <system_error>
#include <thread>

namespace penstock::testing {
namespace {

constexpr int kNotArranged = 101;
constexpr int kThrew = 102;
constexpr unsigned kNobody = 65534;

// The limit counts for ordinary users alone.
bool forbid_threads() {
  if (::geteuid() == 0 && (::setgroups(0, nullptr) != 0 || ::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) {
    return false;
  }
  const rlimit none{0, 0};
  if (::setrlimit(RLIMIT_NPROC, &none) != 0) return false;
  try {
    std::thread([] {}).join();
    return false;
  } catch (const std::system_error&) {
    return true;
  }
}

int run_child(const std::function<int()>& action) noexcept {
  try {
    return forbid_threads() ? action() : kNotArranged;
  } catch (...) {
    return kThrew;
  }
}

}  // namespace

std::optional<int> run_without_threads(const std::function<int()>& action) {
  const pid_t child = ::fork();
  if (child < 0) return std::nullopt;
  if (child == 0) ::_exit(run_child(action));
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return kThrew;
  if (WEXITSTATUS(status) == kNotArranged) return std::nullopt;
  return WEXITSTATUS(status);
}

}  // namespace penstock::testing
