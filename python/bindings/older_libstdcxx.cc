// Lets wheels run on the libstdc++ of GCC 11, which RHEL 9 and Amazon Linux 2023 have. GCC 12 gave one function that
// penstock uses a newer symbol version: the wait of a condition variable. The linker sends its callers here (--wrap).
#include <pthread.h>

#include <condition_variable>
#include <mutex>

extern "C" void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(  // NOLINT: the linker's name
    std::condition_variable* condition, std::unique_lock<std::mutex>& lock) {
  ::pthread_cond_wait(condition->native_handle(), lock.mutex()->native_handle());
}
