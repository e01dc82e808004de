// What an AioHandle is made of.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "api/aio/aio_operation.h"
#include "base/fork.h"
#include "penstock/aio.h"
#include "transfer/crew.h"

namespace penstock {

class AioHandle::State {
 public:
  // `make_engine` is the backend's, but for tests. Throws Error(kArgument) for options that make no sense.
  State(const AioOptions& options, EngineFactory make_engine);
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  const AioOptions& options() const noexcept { return options_; }

  void run(const std::shared_ptr<AioOperation>& operation);
  void start(std::shared_ptr<AioOperation> operation);
  std::size_t wait();
  bool wait_for(double seconds);
  std::size_t pending() const;

 private:
  void give_to_crew(AioOperation& operation);

  void require_own_process() const { penstock::require_own_process(forks_, "the handle"); }

  const std::uint64_t forks_ = fork_count();
  const AioOptions options_;
  std::mutex waiting_;  // held by the thread that waits; taken before mutex_
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<AioOperation>> pending_;
  Crew crew_;
};

}  // namespace penstock
