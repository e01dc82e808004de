// What the machine and this process's cgroups (version 2 and 1) allow, and how much of it can still be had.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "memory/arena.h"

namespace penstock {
namespace {

constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

// The files of one version of cgroups.
struct Hierarchy {
  const char* root;
  const char* limit;
  const char* used;
  // In memory.stat, what can be dropped: page cache, and memory that its owner has marked as free. Files in memory
  // (tmpfs) are not among it, as they are in "cache".
  std::string_view inactive_key;
  std::string_view active_key;
};

constexpr Hierarchy kVersion2{"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "active_file"};
constexpr Hierarchy kVersion1{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                              "total_inactive_file", "total_active_file"};

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;  // "max"
  return value;
}

// The number after a key in a file of lines such as "MemAvailable:  123 kB".
std::optional<std::uint64_t> number_after(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    std::uint64_t number = 0;
    if (word == key && file >> number) return number;
  }
  return std::nullopt;
}

struct Allowance {
  std::uint64_t limit = kNoLimit;
  std::uint64_t left = kNoLimit;  // of the limit, what can be dropped counted as free

  void tighten(const Allowance& other) {
    limit = std::min(limit, other.limit);
    left = std::min(left, other.left);
  }
};

Allowance allowance_of(const std::string& directory, const Hierarchy& hierarchy) {
  const auto limit = number_in(directory + "/" + hierarchy.limit);
  if (!limit) return {};
  const std::uint64_t used = number_in(directory + "/" + hierarchy.used).value_or(0);
  const std::string stat = directory + "/memory.stat";
  const std::uint64_t droppable =
      number_after(stat, hierarchy.inactive_key).value_or(0) + number_after(stat, hierarchy.active_key).value_or(0);
  const std::uint64_t taken = used - std::min(used, droppable);
  return {*limit, *limit - std::min(*limit, taken)};
}

// The smallest on the way from a cgroup up to the root of its hierarchy.
Allowance smallest_allowance(const Hierarchy& hierarchy, std::string group) {
  Allowance smallest;
  while (true) {
    smallest.tighten(allowance_of(hierarchy.root + group, hierarchy));
    if (group.empty() || group == "/") return smallest;
    group.resize(group.rfind('/'));
  }
}

Allowance cgroup_allowance() {
  Allowance allowance;
  std::ifstream groups("/proc/self/cgroup");
  // Lines read "0::/path" (version 2) or "4:memory:/path" (version 1).
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (group.empty() || group.front() != '/') continue;
    if (controllers.empty()) allowance.tighten(smallest_allowance(kVersion2, group));
    if (controllers == "memory") allowance.tighten(smallest_allowance(kVersion1, group));
  }
  return allowance;
}

}  // namespace

std::uint64_t physical_memory() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::uint64_t memory_limit() {
  return std::min(physical_memory(), cgroup_allowance().limit);
}

std::uint64_t available_memory() {
  const auto machine = number_after("/proc/meminfo", "MemAvailable:");
  const std::uint64_t left = std::min(machine ? *machine * 1024 : physical_memory(), cgroup_allowance().left);
  return left + number_after("/proc/meminfo", "SwapFree:").value_or(0) * 1024;
}

}  // namespace penstock
