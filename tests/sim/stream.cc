#include "stream.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "state.h"

namespace sim {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

std::atomic<std::int64_t> cpu_of_streams{0};

std::int64_t read_clock(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

bool may_begin(const Stream& stream) {
  return stream.queue.empty() ? stream.closed : !state().hold;
}

// When the next piece may begin; the lock is let go of while others are waited for.
std::int64_t begin_of(std::unique_lock<std::mutex>& lock, Stream& stream, const Work& work) {
  std::int64_t begin = std::max(work.queued_at, stream.ended_at);
  for (const Progress& progress : work.after) {
    wait_for(lock, progress);
    begin = std::max(begin, progress.stream->ended_at);
  }
  const std::uint64_t most = state().settings.delay;
  return most == 0 ? begin : begin + static_cast<std::int64_t>(stream.random() % (most + 1)) * 1000;
}

// Until the stream is closed and empty.
void run(std::shared_ptr<Stream> stream) {
  prctl(PR_SET_TIMERSLACK, 1);  // deadlines are kept to the microsecond
  std::int64_t counted = 0;
  std::unique_lock lock(state().mutex);
  while (true) {
    stream->arrived.wait(lock, [&] { return may_begin(*stream); });
    if (stream->queue.empty()) {
      state().running.erase(stream.get());
      return;
    }
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    const std::int64_t begin = begin_of(lock, *stream, work);
    lock.unlock();
    sleep_until(begin);
    const std::int64_t end = work.make ? work.make(begin) : begin;
    const std::int64_t cpu = read_clock(CLOCK_THREAD_CPUTIME_ID);
    cpu_of_streams += cpu - std::exchange(counted, cpu);
    lock.lock();
    if (work.finish) {
      work.finish();
    }
    work = {};  // what it kept goes before anybody hears that it is over
    stream->ended_at = end;
    ++stream->done;
    stream->progressed.notify_all();
  }
}

void order_after(std::vector<Progress>& after, const std::shared_ptr<Stream>& stream) {
  if (stream->done < stream->queued) {
    after.push_back({stream, stream->queued});
  }
}

}  // namespace

bool Progress::reached() const {
  return stream == nullptr || stream->done >= count;
}

std::int64_t now_ns() {
  return read_clock(CLOCK_MONOTONIC);
}

std::int64_t cpu_ns() {
  return cpu_of_streams;
}

void sleep_until(std::int64_t deadline) {
  if (deadline <= now_ns()) {
    return;
  }
  timespec until{};
  until.tv_sec = deadline / kSecond;
  until.tv_nsec = deadline % kSecond;
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {
  }
}

std::shared_ptr<Stream> start_stream(Context& context, bool blocking, Handle handle) {
  State& all = state();
  const std::uint64_t seed = all.settings.seed + 1000003 * all.next_handle;
  auto stream = std::make_shared<Stream>(context, blocking, handle, seed);
  all.running.insert(stream.get());
  std::thread(run, stream).detach();
  return stream;
}

void enqueue(const std::shared_ptr<Stream>& stream, Work work) {
  Context& context = *stream->context;
  if (stream == context.null_stream) {
    for (const auto& [handle, other] : state().streams) {
      if (other->context == &context && other->blocking) {
        order_after(work.after, other);
      }
    }
  } else if (stream->blocking) {
    order_after(work.after, context.null_stream);
  }
  work.queued_at = now_ns();
  stream->queue.push_back(std::move(work));
  ++stream->queued;
  stream->arrived.notify_one();
}

Progress record(const std::shared_ptr<Stream>& stream) {
  if (stream->blocking) {
    enqueue(stream, {});  // it waits for other streams too
  }
  return {stream, stream->queued};
}

void wait_for(std::unique_lock<std::mutex>& lock, const Progress& progress) {
  if (progress.stream != nullptr) {
    progress.stream->progressed.wait(lock, [&] { return progress.reached(); });
  }
}

void wait_for_context(std::unique_lock<std::mutex>& lock, Context& context) {
  std::vector<Progress> all = {{context.null_stream, context.null_stream->queued}};
  for (const auto& [handle, stream] : state().streams) {
    if (stream->context == &context) {
      all.push_back({stream, stream->queued});
    }
  }
  for (const Progress& progress : all) {
    wait_for(lock, progress);
  }
}

}  // namespace sim
