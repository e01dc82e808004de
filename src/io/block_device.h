// What drive a file lies on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace penstock {

// True when the file's drive is a hypervisor's (virtio, Xen, Hyper-V). Such drives are slow to reach memory that is
// scattered over many small pages, so bytes do better to pass through a few large ones. False when the drive can't be
// told.
bool on_virtual_drive(int fd);

// How far the kernel reads ahead of who reads through the page cache, and the file where that is set.
struct ReadAhead {
  std::uint64_t nbytes = 0;
  std::filesystem::path setting;  // "/sys/block/vda/queue/read_ahead_kb"
};

// Nothing when the drive can't be told.
std::optional<ReadAhead> read_ahead_of(int fd);

}  // namespace penstock
