#include "io/block_device.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace penstock {
namespace {

// "8:1"; empty when there is none to be had.
std::string device_number(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return "";
  return fmt::format("{}:{}", major(status.st_dev), minor(status.st_dev));
}

}  // namespace

bool on_virtual_drive(int fd) {
  // A link such as ../../devices/pci0000:00/0000:00:02.0/virtio1/block/vda.
  const std::string name = "/sys/dev/block/" + device_number(fd);
  std::array<char, 512> target{};
  const ssize_t length = ::readlink(name.c_str(), target.data(), target.size());
  if (length <= 0) return false;
  const std::string_view device(target.data(), static_cast<std::size_t>(length));
  for (const std::string_view bus : {"/virtio", "/vbd-", "/vmbus", "/VMBUS"}) {
    if (device.find(bus) != std::string_view::npos) return true;
  }
  return false;
}

std::optional<ReadAhead> read_ahead_of(int fd) {
  const std::string number = device_number(fd);
  if (number.empty()) return std::nullopt;
  // Of a whole drive, of the drive that a partition is on, and of what has no drive (NFS).
  for (const std::string& name :
       {"/sys/dev/block/" + number + "/queue/read_ahead_kb", "/sys/dev/block/" + number + "/../queue/read_ahead_kb",
        "/sys/class/bdi/" + number + "/read_ahead_kb"}) {
    std::uint64_t kib = 0;
    if (!(std::ifstream(name) >> kib)) continue;
    std::error_code ignored;
    const auto setting = std::filesystem::canonical(name, ignored);
    return ReadAhead{kib * kKiB, setting.empty() ? std::filesystem::path(name) : setting};
  }
  return std::nullopt;
}

}  // namespace penstock
