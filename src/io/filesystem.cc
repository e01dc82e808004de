#include "io/filesystem.h"

#include <fmt/format.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string_view>

namespace penstock {
namespace {

enum class Kind { kLocal, kMemory, kRemote };

struct Known {
  std::uint32_t magic;  // as statfs(2) lists them
  std::string_view name;
  Kind kind;
};

constexpr std::array kKnown = {
    Known{0x0000EF53, "ext4", Kind::kLocal},  // and ext2 and ext3, which share the number
    Known{0x58465342, "xfs", Kind::kLocal},      Known{0x9123683E, "btrfs", Kind::kLocal},
    Known{0x01021994, "tmpfs", Kind::kMemory},   Known{0x858458F6, "ramfs", Kind::kMemory},
    Known{0x794C7630, "overlay", Kind::kLocal},  Known{0x2FC12FC1, "zfs", Kind::kLocal},
    Known{0xF2F52010, "f2fs", Kind::kLocal},     Known{0xCA451A4E, "bcachefs", Kind::kLocal},
    Known{0x73717368, "squashfs", Kind::kLocal}, Known{0xE0F5E1E2, "erofs", Kind::kLocal},
    Known{0x3153464A, "jfs", Kind::kLocal},      Known{0x00006969, "nfs", Kind::kRemote},
    Known{0xFF534D42, "cifs", Kind::kRemote},    Known{0xFE534D42, "smb3", Kind::kRemote},
    Known{0x65735546, "fuse", Kind::kRemote},    Known{0x01021997, "9p", Kind::kRemote},
    Known{0x00C36400, "ceph", Kind::kRemote},    Known{0x0BD00BD0, "lustre", Kind::kRemote},
    Known{0x47504653, "gpfs", Kind::kRemote},    Known{0x19830326, "beegfs", Kind::kRemote},
};

std::optional<std::uint32_t> magic_of(int fd) {
  struct statfs status {};
  if (::fstatfs(fd, &status) != 0) return std::nullopt;
  return static_cast<std::uint32_t>(status.f_type);
}

const Known* find_known(std::uint32_t magic) {
  const auto found = std::find_if(kKnown.begin(), kKnown.end(), [magic](const Known& k) { return k.magic == magic; });
  return found == kKnown.end() ? nullptr : &*found;
}

// The mount whose device is the file's. A line reads "36 35 98:0 /root /mount options shared:1 - ext4 /dev/sda ...".
void look_up_mount(int fd, Filesystem& filesystem) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return;
  const std::string device = fmt::format("{}:{}", major(status.st_dev), minor(status.st_dev));
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word >> word >> word;
    if (word != device) continue;
    while (words >> word && word != "-") continue;
    words >> filesystem.name >> filesystem.source;
    return;
  }
}

}  // namespace

Filesystem filesystem_of(int fd) {
  Filesystem filesystem;
  const auto magic = magic_of(fd);
  if (!magic) return filesystem;
  const Known* const known = find_known(*magic);
  filesystem.name = known != nullptr ? std::string(known->name) : fmt::format("{:#x}", *magic);
  filesystem.local = known != nullptr && known->kind != Kind::kRemote;
  filesystem.memory = known != nullptr && known->kind == Kind::kMemory;
  look_up_mount(fd, filesystem);
  return filesystem;
}

bool on_local_filesystem(int fd) {
  const auto magic = magic_of(fd);
  const Known* const known = magic ? find_known(*magic) : nullptr;
  return known != nullptr && known->kind != Kind::kRemote;
}

std::optional<std::uint64_t> extent_count(int fd) {
  fiemap map{};
  map.fm_length = FIEMAP_MAX_OFFSET;
  if (::ioctl(fd, FS_IOC_FIEMAP, &map) != 0) return std::nullopt;
  return map.fm_mapped_extents;
}

}  // namespace penstock
