// Engine: the one interface to the kernel's reads and writes. Backends: io_uring, a pool of threads, and inline.
//
// An engine belongs to the thread that made it. It moves bytes and judges nothing: a completion carries what the kernel
// said, bytes or -errno, and may be short. RequestQueue (queue.h) turns that into whole transfers.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "penstock/options.h"

namespace penstock {

struct IoRequest {
  enum class Operation : std::uint8_t { kRead, kWrite };

  Operation operation = Operation::kRead;
  int fd = -1;
  std::byte* data = nullptr;
  std::uint32_t length = 0;
  std::uint64_t offset = 0;
  int flags = 0;          // RWF_*
  int buffer_index = -1;  // of the registered buffer that `data` lies in, or -1
  std::uint64_t tag = 0;  // comes back with the completion
};

struct IoCompletion {
  std::uint64_t tag = 0;
  std::int64_t result = 0;  // bytes, or -errno
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual std::string_view name() const noexcept = 0;
  // kAuto for one that is none of the backends that can be asked for.
  virtual Backend kind() const noexcept { return Backend::kAuto; }

  // Tells the kernel about buffers that requests will use again and again. False where that is not possible (a memlock
  // limit, a backend without it): requests must then leave buffer_index at -1, and nothing else changes.
  virtual bool register_buffers(std::span<const iovec> buffers) = 0;

  // Takes a request; it may start now or at the next wait(). Returns 0 or -errno when it could not be taken. The caller
  // keeps at most `depth` requests in flight.
  virtual int submit(const IoRequest& request) = 0;

  // Waits until at least one request has completed and stores up to completions.size() of them. Returns how many, or
  // -errno. Must not be called with nothing in flight.
  virtual int wait(std::span<IoCompletion> completions) = 0;
};

// Makes an engine for `depth` requests in flight on the calling thread.
using EngineFactory = std::function<std::unique_ptr<Engine>(unsigned depth)>;

// Each returns null when the kernel refuses it.
std::unique_ptr<Engine> make_uring_engine(unsigned depth);
// The same, and why: ENOSYS where there is no io_uring, EPERM where it is forbidden, EOPNOTSUPP where it is too old.
std::unique_ptr<Engine> try_uring_engine(unsigned depth, int& error_number);
std::unique_ptr<Engine> make_threads_engine(unsigned depth);
// Runs each request where it is submitted: for transfers too small to be worth anything else.
std::unique_ptr<Engine> make_inline_engine();

// 0 when this process may use io_uring, else the errno with which the kernel refuses it; asked of the kernel once.
int uring_refusal();
inline bool uring_is_available() {
  return uring_refusal() == 0;
}

// The factory for a backend. kAuto is io_uring where it is available and threads elsewhere; kUring where it is not
// throws Error(kUnsupported).
EngineFactory engine_factory(Backend backend);

}  // namespace penstock
