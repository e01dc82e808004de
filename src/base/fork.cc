#include "base/fork.h"

#include <pthread.h>

#include "base/error.h"

namespace penstock {
namespace {

constinit std::mutex mutex;
constinit std::atomic<std::uint64_t> forks{0};

// When the library is loaded: a child may come before anything of it was used.
[[maybe_unused]] const int registered = ::pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); },
                                                         [] {
                                                           forks.fetch_add(1, std::memory_order_relaxed);
                                                           mutex.unlock();
                                                         });

}  // namespace

std::mutex& process_mutex() noexcept {
  return mutex;
}

std::uint64_t fork_count() noexcept {
  return forks.load(std::memory_order_relaxed);
}

void require_own_process(std::uint64_t forks_then, std::string_view thing) {
  if (forks_then != fork_count()) throw_argument("{} belongs to the process that this one was forked from", thing);
}

}  // namespace penstock
