#include "io/hidden_directories.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "io/names.h"

namespace penstock {
namespace {

constexpr std::size_t kHexDigits = 16;
constexpr std::string_view kPutAside = "replaced";
constexpr std::array<std::string_view, 3> kReasons{"saving", kPutAside, "removing"};

struct HiddenName {
  std::string_view target;
  std::string_view why;
};

std::optional<HiddenName> parse(std::string_view name) noexcept {
  const auto is_hex = [](char digit) { return (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f'); };
  if (name.size() < kHexDigits + 2 || name.front() != '.') return std::nullopt;
  const std::string_view token = name.substr(name.size() - kHexDigits);
  if (!std::all_of(token.begin(), token.end(), is_hex)) return std::nullopt;
  name.remove_suffix(kHexDigits);
  for (const std::string_view why : kReasons) {
    const std::size_t tail = why.size() + 2;  // ".saving-"
    if (name.size() < tail + 2 || name.back() != '-' || name[name.size() - tail] != '.') continue;
    if (name.substr(name.size() - tail + 1, why.size()) == why)
      return HiddenName{name.substr(1, name.size() - tail - 1), why};
  }
  return std::nullopt;
}

UniqueFd open_directory(int parent, const std::string& name) {
  return UniqueFd(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

bool has_name(int parent, const std::string& name, int fd) {
  struct stat named {};
  struct stat opened {};
  return ::fstatat(parent, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 && ::fstat(fd, &opened) == 0 &&
         named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

bool is_there(int parent, const std::string& name) {
  struct stat status {};
  return ::fstatat(parent, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

bool rename_to_free(int parent, const std::string& from, const std::string& to) {
  if (::renameat2(parent, from.c_str(), parent, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) return false;
  return !is_there(parent, to) && ::renameat(parent, from.c_str(), parent, to.c_str()) == 0;
}

void remove_tree(int parent, const std::string& name) {
  std::error_code ignored;
  std::filesystem::remove_all(fmt::format("/proc/self/fd/{}/{}", parent, name), ignored);
}

}  // namespace

std::string hidden_directory_name(std::string_view name, std::string_view why) {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) < 0) random = static_cast<std::uint64_t>(::getpid());
  return fmt::format(".{}.{}-{:016x}", name, why, random);
}

std::string_view target_of_hidden_directory(std::string_view name) noexcept {
  const auto parsed = parse(name);
  return parsed ? parsed->target : std::string_view();
}

UniqueFd hold_directory(int parent, const std::string& name) {
  UniqueFd fd = open_directory(parent, name);
  if (fd && ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) fd.reset();
  if (fd && !has_name(parent, name, fd.get())) fd.reset();  // somebody took it for dead before it was locked
  return fd;
}

std::vector<DeadDirectory> remove_dead_directories(int parent, const std::function<bool(std::string_view)>& is_ours) {
  std::vector<DeadDirectory> gone;
  for (const std::string& name : list_names(parent)) {
    const auto parsed = parse(name);
    if (!parsed || !is_ours(parsed->target)) continue;
    const UniqueFd fd = open_directory(parent, name);
    if (!fd || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || !has_name(parent, name, fd.get())) continue;
    const bool restored = parsed->why == kPutAside && rename_to_free(parent, name, std::string(parsed->target));
    if (!restored) remove_tree(parent, name);
    if (!is_there(parent, name)) gone.push_back({name, restored});
  }
  return gone;
}

}  // namespace penstock
