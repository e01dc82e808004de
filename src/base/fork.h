// What keeps a child of fork() from waiting for threads that it does not have.
//
// fork() copies the thread that calls it and no other. A mutex that another one held is locked in the child for ever,
// and what it guarded may be half changed. So what threads share is one of these:
//
//   process_mutex()  for what the whole process shares. fork() takes it, so in a child it is free and all that it
//                    guards is whole. It is held for a moment, never while waiting for anything else.
//   PerProcess<T>    for what fewer share, or what is locked for longer: a child has a T of its own, a new one.
//   MadeOnce<T>      for what never changes once it is made. There is no lock.
//   of_this_process  for what has threads: it belongs to the process that made it.
//
// Objects of one call (a load, a save) need nothing: nobody in a child knows of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>

namespace penstock {

std::mutex& process_mutex() noexcept;

// How many forks lie between this process and the one that loaded the library.
std::uint64_t fork_count() noexcept;

template <typename T>
class PerProcess {
 public:
  constexpr PerProcess() = default;
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;
  ~PerProcess() {
    Entry* const entry = entry_.load(std::memory_order_acquire);
    if (entry != nullptr && entry->forks == fork_count()) delete entry;  // else it is left as the parent had it
  }

  T& get() const {
    Entry* entry = entry_.load(std::memory_order_acquire);
    while (entry == nullptr || entry->forks != fork_count()) {
      auto fresh = std::make_unique<Entry>();
      if (entry_.compare_exchange_strong(entry, fresh.get())) entry = fresh.release();
    }
    return entry->value;
  }

 private:
  struct Entry {
    std::uint64_t forks = fork_count();
    T value{};
  };

  mutable std::atomic<Entry*> entry_{nullptr};
};

template <typename T>
class MadeOnce {
 public:
  constexpr MadeOnce() = default;
  MadeOnce(const MadeOnce&) = delete;
  MadeOnce& operator=(const MadeOnce&) = delete;
  ~MadeOnce() { delete made_.load(std::memory_order_acquire); }

  // Threads that come at once may all call `make`; what the first one made is kept.
  template <typename Make>
  const T& get(const Make& make) const {
    if (const T* made = made_.load(std::memory_order_acquire)) return *made;
    auto mine = std::make_unique<const T>(make());
    const T* first = nullptr;
    return made_.compare_exchange_strong(first, mine.get()) ? *mine.release() : *first;
  }

 private:
  mutable std::atomic<const T*> made_{nullptr};
};

// Owned by the process that made it. A child leaves it as it is: there are no threads to join, and files would be
// removed under the parent.
template <typename T>
std::shared_ptr<T> of_this_process(std::unique_ptr<T> object) {
  return {object.release(), [forks = fork_count()](T* owned) {
            if (forks == fork_count()) delete owned;
          }};
}

// Says no in a child. `forks`: as fork_count() was when the thing was made. Throws Error(kArgument).
void require_own_process(std::uint64_t forks, std::string_view thing);

}  // namespace penstock
