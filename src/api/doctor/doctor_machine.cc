// inspect_machine(), inspect_devices(): what the system says about itself and about what it allows this process.
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "device/cufile_api.h"
#include "device/gds.h"
#include "device/pinned_pool.h"
#include "io/engine.h"
#include "memory/arena.h"
#include "memory/huge_pages.h"
#include "penstock/doctor.h"
#include "transfer/settings.h"

namespace penstock {
namespace {

std::string kernel_release() {
  utsname name{};
  return ::uname(&name) == 0 ? name.release : "";
}

std::optional<int> number_in(const char* path) {
  std::ifstream file(path);
  int number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

// The value of a line such as "Seccomp:  2" in /proc/self/status.
bool has_seccomp_filter() {
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key) {
    int mode = 0;
    if (key == "Seccomp:" && status >> mode) return mode != 0;
  }
  return false;
}

std::uint64_t limit_of(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? Machine::kUnlimited : limit.rlim_cur;
}

std::uint64_t count_open_files() {
  std::uint64_t count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end; it.increment(error)) {
    ++count;
  }
  if (error) return limit_of(RLIMIT_NOFILE);  // not even this one more
  return count > 0 ? count - 1 : 0;           // one is the listing's own
}

std::vector<std::string> settings_in_force() {
  std::vector<std::string> settings;
  for (const char* name :
       {"PENSTOCK_BACKEND", "PENSTOCK_BLOCK_SIZE", "PENSTOCK_QUEUE_DEPTH", "PENSTOCK_THREADS", "PENSTOCK_LANDING",
        "PENSTOCK_MEMORY_BUDGET", "PENSTOCK_PINNED", "PENSTOCK_GDS", "PENSTOCK_LIBCUDA", "PENSTOCK_LIBCUFILE"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0') settings.push_back(std::string(name) + "=" + value);
  }
  return settings;
}

// As a load would find out, but cuFile itself is not started: its driver stays open for the process.
std::string gds_obstacle_here(bool has_device) {
  const DirectStorage asked = decide_gds(DirectStorage::kAuto);
  if (has_device && asked == DirectStorage::kOff) return "PENSTOCK_GDS turns it off";
  std::string reason = has_device && asked == DirectStorage::kOn ? gds_danger() : gds_obstacle(has_device);
  return reason.empty() ? cuda::open_file_library().why_not : reason;
}

}  // namespace

Machine inspect_machine() {
  Machine machine;
  machine.kernel = kernel_release();
  machine.uring_error = uring_refusal();
  machine.uring = machine.uring_error == 0;
  machine.uring_disabled = number_in("/proc/sys/kernel/io_uring_disabled");
  machine.seccomp = has_seccomp_filter();
  machine.memory_available = available_memory();
  machine.memory_limit = memory_limit();
  machine.memory_limited_by_cgroup = machine.memory_limit < physical_memory();
  machine.locked_memory_limit = limit_of(RLIMIT_MEMLOCK);
  machine.open_files_limit = limit_of(RLIMIT_NOFILE);
  machine.open_files = count_open_files();
  machine.huge_pages = huge_pages_setting();
  machine.environment = settings_in_force();
  return machine;
}

Devices inspect_devices() {
  Devices devices;
  devices.found = list_devices(&devices.why_none);
  devices.driver = driver_version();
  devices.pinned_limit = PinnedPool::process().bound();
  devices.gds_obstacle = gds_obstacle_here(!devices.found.empty());
  return devices;
}

}  // namespace penstock
