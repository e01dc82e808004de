// What filesystem a file lies on, and how it lies there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace penstock {

struct Filesystem {
  std::string name;     // "ext4", "nfs"; its number in hexadecimal where that is all there is
  std::string source;   // "/dev/vda", "server:/export"; empty where the mount is not found
  bool local = false;   // known to keep its pages on this machine: mapping them can't fail for a lost server
  bool memory = false;  // there is no drive behind it: tmpfs, ramfs
};

Filesystem filesystem_of(int fd);

// The same question alone, without looking for the mount.
bool on_local_filesystem(int fd);

// In how many pieces the filesystem keeps the file; nothing where it doesn't say. Costs one call.
std::optional<std::uint64_t> extent_count(int fd);

}  // namespace penstock
