// memory_limit(): what the machine and this process's cgroups (version 2 and 1) allow.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string>

#include "memory/arena.h"

namespace penstock {
namespace {

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;  // "max"
  return value;
}

// The smallest limit on the way from a cgroup up to the root of its hierarchy.
std::uint64_t smallest_limit(const std::string& root, std::string group, const char* name) {
  std::uint64_t smallest = ~std::uint64_t{0};
  while (true) {
    if (const auto limit = number_in(root + group + "/" + name)) smallest = std::min(smallest, *limit);
    if (group.empty() || group == "/") return smallest;
    group.resize(group.rfind('/'));
  }
}

}  // namespace

std::uint64_t memory_limit() {
  std::uint64_t limit =
      static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::ifstream groups("/proc/self/cgroup");
  // Lines read "0::/path" (version 2) or "4:memory:/path" (version 1).
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (group.empty() || group.front() != '/') continue;
    if (controllers.empty()) limit = std::min(limit, smallest_limit("/sys/fs/cgroup", group, "memory.max"));
    if (controllers == "memory") {
      limit = std::min(limit, smallest_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
    }
  }
  return limit;
}

}  // namespace penstock
