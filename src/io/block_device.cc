#include "io/block_device.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <string_view>

namespace penstock {

bool on_virtual_drive(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return false;
  // A link such as ../../devices/pci0000:00/0000:00:02.0/virtio1/block/vda.
  const std::string name = fmt::format("/sys/dev/block/{}:{}", major(status.st_dev), minor(status.st_dev));
  std::array<char, 512> target{};
  const ssize_t length = ::readlink(name.c_str(), target.data(), target.size());
  if (length <= 0) return false;
  const std::string_view device(target.data(), static_cast<std::size_t>(length));
  for (const std::string_view bus : {"/virtio", "/vbd-", "/vmbus", "/VMBUS"}) {
    if (device.find(bus) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace penstock
