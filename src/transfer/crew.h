// Crew: threads that each own an engine and a few staging blocks, and work off jobs in order.
//
// Loads and saves are the same machine run in two directions: a worker keeps several requests in flight and does the
// CPU work that belongs to each (copy out, convert, checksum; or, before a write, fill). Jobs say what that is. A crew
// without threads does everything on the thread that calls add().
//
// A job has a slot of its worker, and a staging block, from its start to its end:
//
//   free -> [copying ->] transferring -> [copying ->] free
//
// "Copying" is work that goes on by itself, such as a copy between the staging block and a device: the transfer is
// done, the job is not, and the block must not be used again. Jobs over host memory never are.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "io/queue.h"
#include "memory/arena.h"
#include "transfer/settings.h"
#include "transfer/staging.h"

namespace penstock {

// What the crew counts while it works.
struct Counters {
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> resumed{0};
  std::atomic<std::uint64_t> bytes_direct{0};
  std::atomic<std::uint64_t> bytes_buffered{0};
  std::atomic<std::uint64_t> bytes_copied{0};
  std::atomic<std::uint64_t> bytes_on_drive{0};
  std::atomic<std::uint64_t> bytes_gds{0};
};

// What a job does next.
enum class NextStep : std::uint8_t {
  kTransfer,  // the engine moves what `transfer` says
  kCopy,      // a copy is under way; see Job::copy_is_done()
  kRestart,   // of start() only: it is started again, with a staging block if it needs one now
  kEnd,       // nothing: the job has done its work
};

// One request's worth of work. Its functions run on a worker, one at a time.
class Job {
 public:
  virtual ~Job() = default;

  // Whether start() is to have a staging block. One that has not is given null.
  virtual bool needs_staging() const noexcept { return true; }

  // Prepares `transfer`, using `staging` (block_size bytes) if it needs a place. kEnd when everything is done already
  // without an engine (a copy from the page cache). May throw.
  virtual NextStep start(std::byte* staging, int staging_index, Transfer& transfer) = 0;

  // The transfer has moved all its bytes. kCopy or kEnd. May throw.
  virtual NextStep transferred(std::byte* staging) = 0;

  // After kCopy: whether it is through; waits for that, however it ends; goes on after it. None may be called
  // otherwise.
  virtual bool copy_is_done() noexcept { return true; }
  virtual void wait_for_copy() noexcept {}
  virtual NextStep copied(std::byte* /*staging*/, int /*staging_index*/, Transfer& /*transfer*/) {
    return NextStep::kEnd;
  }

  // A transfer failed: throws the error for that, or goes another way.
  virtual NextStep failed(const Finished& finished, std::byte* staging, int staging_index, Transfer& transfer) = 0;

  // Called once, at the end, whatever happened: null when the job succeeded. Must not throw.
  virtual void end(std::exception_ptr error) noexcept = 0;

  // True when there is no point in starting it any more.
  virtual bool abandoned() const noexcept = 0;
};

class Crew {
 public:
  Crew(Settings settings, StagingFactory staging);
  Crew(Settings settings, std::shared_ptr<HostPool> pool) : Crew(std::move(settings), host_staging(std::move(pool))) {}
  ~Crew() { stop(); }

  // Abandons what has not started and waits for what is in flight. Nothing may be added afterwards; the counters are
  // final.
  void stop();

  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  const Settings& settings() const noexcept { return settings_; }
  Counters& counters() noexcept { return counters_; }
  // "uring", "threads" or "inline"; empty until a request needed an engine.
  std::string backend() const;

  // Adds jobs, to be started in this order. Without threads they are done before this returns.
  void add(std::vector<std::unique_ptr<Job>> jobs);

 private:
  struct Slot;
  class Worker;

  void start_threads();
  std::unique_ptr<Job> take(bool may_wait);
  void set_backend(std::string_view name);

  const Settings settings_;
  const StagingFactory make_staging_;
  Counters counters_;
  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::unique_ptr<Job>> waiting_;
  std::string backend_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace penstock
