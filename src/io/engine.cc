#include "io/engine.h"

#include "base/error.h"
#include "base/fork.h"

namespace penstock {
namespace {

constinit MadeOnce<int> refusal;

}  // namespace

int uring_refusal() {
  return refusal.get([] {
    int error_number = 0;
    return try_uring_engine(2, error_number) != nullptr ? 0 : error_number;
  });
}

EngineFactory engine_factory(Backend backend) {
  if (backend == Backend::kUring && !uring_is_available()) {
    throw Error(
        ErrorKind::kUnsupported,
        "io_uring was asked for, but the kernel refuses it to this process (seccomp, or kernel.io_uring_disabled); "
        "use the threads backend");
  }
  if (backend == Backend::kThreads || !uring_is_available()) return make_threads_engine;
  // A process can run out of what a ring needs even where the first one worked.
  return [](unsigned depth) {
    auto engine = make_uring_engine(depth);
    return engine != nullptr ? std::move(engine) : make_threads_engine(depth);
  };
}

}  // namespace penstock
