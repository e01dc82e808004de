// One request as a blocking system call; what the backends without io_uring are made of.
#pragma once

#include <sys/uio.h>

#include <cerrno>
#include <cstdint>

#include "io/engine.h"

namespace penstock {

// Bytes, or -errno.
inline std::int64_t run_blocking(const IoRequest& request) noexcept {
  const iovec buffer{request.data, request.length};
  const auto offset = static_cast<off_t>(request.offset);
  const ssize_t count = request.operation == IoRequest::Operation::kRead
                            ? ::preadv2(request.fd, &buffer, 1, offset, request.flags)
                            : ::pwritev2(request.fd, &buffer, 1, offset, request.flags);
  return count < 0 ? -errno : count;
}

}  // namespace penstock
