// Memory of another process of this machine, read without that process's help: the kernel copies it, once.
//
// For processes that work together, such as the ranks of a group: one has read a tensor and says where it lies, the
// others take their parts. It needs the rights that a debugger needs: the same user, and, where Yama restricts them,
// that the other process has called let_siblings_read().
#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/export.h"

namespace PENSTOCK_EXPORT penstock {

// Stretches of equal length at equal distances. One alone has a count of 1.
struct RemoteMemory {
  std::int64_t process = 0;  // its number, as this process sees it
  std::uint64_t address = 0;
  std::uint64_t nbytes = 0;  // of a stretch
  std::uint64_t stride = 0;
  std::uint64_t count = 1;
};

// Puts the stretches side by side at `to`. Throws Error(kIo) that names the process.
void read_process(const RemoteMemory& from, void* to);

// Allows the parent of this process and its other children to read its memory, where the system asks for that.
void let_siblings_read() noexcept;

}  // namespace penstock
