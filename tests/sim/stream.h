// Streams and events: work in its order, each stream on a thread of its own, late by a random time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "types.h"

namespace sim {

struct Context;
struct Stream;

// The first `count` pieces of work of a stream.
struct Progress {
  std::shared_ptr<Stream> stream;
  std::uint64_t count = 0;

  bool reached() const;
};

// Nanoseconds of the clock that all deadlines are on.
SIM_EXPORT std::int64_t now_ns();
// That the threads of all streams have used so far.
std::int64_t cpu_ns();
SIM_EXPORT void sleep_until(std::int64_t deadline);

struct Work {
  // Made without the lock. Gets when it may begin, gives when it ended: times that a link's rate allows, not those at
  // which this thread happened to run.
  std::function<std::int64_t(std::int64_t begin)> make;
  std::function<void()> finish;  // with the lock; may be empty
  std::vector<Progress> after;   // that has to be reached first
  std::int64_t queued_at = 0;
};

struct Stream {
  Stream(Context& its_context, bool is_blocking, Handle its_handle, std::uint64_t seed)
      : context(&its_context), blocking(is_blocking), handle(its_handle), random(seed) {}

  Context* const context;
  const bool blocking;  // ordered with the null stream
  const Handle handle;
  bool closed = false;  // ends when it is empty
  std::deque<Work> queue;
  std::uint64_t queued = 0;  // ever
  std::uint64_t done = 0;
  std::int64_t ended_at = 0;        // the last piece of work that is done
  std::condition_variable arrived;  // work, or a reason to look again
  std::condition_variable progressed;
  std::mt19937_64 random;
};

struct Event {
  Context* context = nullptr;
  Progress moment;  // without a stream: never recorded
};

// All below: with the state locked.
std::shared_ptr<Stream> start_stream(Context& context, bool blocking, Handle handle);

// Adds work. That of the null stream and that of the blocking streams of a context wait for each other.
void enqueue(const std::shared_ptr<Stream>& stream, Work work);

// All that is queued there now.
Progress record(const std::shared_ptr<Stream>& stream);

void wait_for(std::unique_lock<std::mutex>& lock, const Progress& progress);
void wait_for_context(std::unique_lock<std::mutex>& lock, Context& context);

}  // namespace sim
