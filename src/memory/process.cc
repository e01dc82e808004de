#include "penstock/process.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

#include "base/error.h"

namespace penstock {
namespace {

// What the kernel takes in one call.
constexpr std::size_t kMostStretches = 1024;

[[noreturn]] void throw_unread(std::int64_t process, const char* why, int code) {
  throw Error(ErrorKind::kIo, fmt::format("the memory of process {} cannot be read: {}", process, why), code);
}

// Reads as many bytes as `stretches` have together; the kernel may stop earlier, between any two bytes.
void read_stretches(pid_t process, std::span<iovec> stretches, std::byte* to) {
  while (!stretches.empty()) {
    std::size_t wanted = 0;
    for (const iovec& stretch : stretches) wanted += stretch.iov_len;
    const iovec local{to, wanted};
    const ssize_t count = ::process_vm_readv(process, &local, 1, stretches.data(), stretches.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_unread(process, errno_text(errno).c_str(), errno);
    if (count == 0) throw_unread(process, "it ends there", EFAULT);
    to += count;
    auto done = static_cast<std::size_t>(count);
    while (!stretches.empty() && done >= stretches.front().iov_len) {
      done -= stretches.front().iov_len;
      stretches = stretches.subspan(1);
    }
    if (done == 0) continue;
    stretches.front().iov_base = static_cast<std::byte*>(stretches.front().iov_base) + done;
    stretches.front().iov_len -= done;
  }
}

}  // namespace

void read_process(const RemoteMemory& from, void* to) {
  if (from.process <= 0 || from.process > std::numeric_limits<pid_t>::max()) {
    throw_argument("there is no process {}", from.process);
  }
  auto* target = static_cast<std::byte*>(to);
  const std::uint64_t count = from.nbytes == 0 ? 0 : from.count;
  std::array<iovec, kMostStretches> stretches;
  for (std::uint64_t first = 0; first < count; first += kMostStretches) {
    const auto many = static_cast<std::size_t>(std::min<std::uint64_t>(count - first, kMostStretches));
    for (std::size_t i = 0; i < many; ++i) {
      const std::uint64_t address = from.address + (first + i) * from.stride;
      stretches[i] = {reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), from.nbytes};
    }
    read_stretches(static_cast<pid_t>(from.process), std::span(stretches).first(many), target);
    target += many * from.nbytes;
  }
}

void let_siblings_read() noexcept {
  // Fails where there is no Yama, and then nobody asks.
  ::prctl(PR_SET_PTRACER, static_cast<unsigned long>(::getppid()), 0, 0, 0);
}

}  // namespace penstock
