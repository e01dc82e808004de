#include "penstock/aio.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "api/aio/aio_state.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/tuning.h"
#include "memory/arena.h"

namespace penstock {
namespace {

constexpr std::size_t kSector = 512;
constexpr std::size_t kLargestBlock = 1 * kGiB;
// The crew's own staging is not used: bytes go from and to the caller's memory.
constexpr std::uint64_t kNoStagingBlock = 4 * kKiB;

constexpr double kWaitStep = 3600;

Settings crew_settings(const AioOptions& options, EngineFactory make_engine) {
  if (options.block_size == 0 || options.block_size > kLargestBlock) {
    throw_argument("block size {}: expected 1 to {}", options.block_size, kLargestBlock);
  }
  if (options.queue_depth == 0) throw_argument("queue depth 0: expected at least 1");
  if (options.intra_op_parallelism == 0 || options.intra_op_parallelism > tuning::kMostThreads) {
    throw_argument("parallelism {}: expected 1 to {} threads", options.intra_op_parallelism, tuning::kMostThreads);
  }
  Settings settings;
  settings.make_engine = std::move(make_engine);
  settings.block_size = kNoStagingBlock;
  settings.register_staging = false;
  settings.threads = options.intra_op_parallelism;
  settings.queue_depth = settings.threads * std::min(options.queue_depth, tuning::kDeepestQueue);
  return settings;
}

void wait_until_over(AioOperation& operation) {
  while (!operation.wait_for(kWaitStep)) {
  }
}

// The first error, with the number of those that are not shown.
[[noreturn]] void throw_first(const std::exception_ptr& first, std::size_t failed) {
  if (failed == 1) std::rethrow_exception(first);
  try {
    std::rethrow_exception(first);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{} (and {} more of the operations failed)", error.what(), failed - 1),
                error.error_number());
  }
}

}  // namespace

AioHandle::State::State(const AioOptions& options, EngineFactory make_engine)
    : options_(options), crew_(crew_settings(options, std::move(make_engine)), host_pool(nullptr)) {}

AioHandle::State::~State() {
  try {
    wait();
  } catch (...) {
    // Nobody asked how they went.
  }
}

// Starting a crew's threads is not for several threads at once.
void AioHandle::State::give_to_crew(AioOperation& operation) {
  require_own_process();
  const std::lock_guard lock(mutex_);
  operation.start(crew_, options_.block_size);
}

void AioHandle::State::run(const std::shared_ptr<AioOperation>& operation) {
  give_to_crew(*operation);
  wait_until_over(*operation);
  try {
    operation->finish();
  } catch (...) {
    operation->release();
    throw;
  }
  operation->release();
}

void AioHandle::State::start(std::shared_ptr<AioOperation> operation) {
  give_to_crew(*operation);
  const std::lock_guard lock(mutex_);
  pending_.push_back(std::move(operation));
}

std::size_t AioHandle::State::wait() {
  require_own_process();
  // A thread whose operations another has taken to wait for must not return before they are finished.
  const std::lock_guard one_at_a_time(waiting_);
  std::vector<std::shared_ptr<AioOperation>> operations;
  {
    const std::lock_guard lock(mutex_);
    operations.swap(pending_);
  }
  std::exception_ptr first;
  std::size_t failed = 0;
  for (const auto& operation : operations) {
    wait_until_over(*operation);
    try {
      operation->finish();
    } catch (...) {
      if (failed++ == 0) first = std::current_exception();
    }
    operation->release();
  }
  if (failed > 0) throw_first(first, failed);
  return operations.size();
}

bool AioHandle::State::wait_for(double seconds) {
  require_own_process();
  std::vector<std::shared_ptr<AioOperation>> operations;
  {
    const std::lock_guard lock(mutex_);
    operations = pending_;
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  return std::all_of(operations.begin(), operations.end(), [&](const auto& operation) {
    const std::chrono::duration<double> left = deadline - std::chrono::steady_clock::now();
    return operation->wait_for(std::max(0.0, left.count()));
  });
}

std::size_t AioHandle::State::pending() const {
  require_own_process();
  const std::lock_guard lock(mutex_);
  return pending_.size();
}

AioHandle::AioHandle(const AioOptions& options)
    : AioHandle(std::make_unique<State>(options, engine_factory(options.backend))) {}
AioHandle::AioHandle(std::unique_ptr<State> state) : state_(of_this_process(std::move(state))) {}
AioHandle::AioHandle(AioHandle&&) noexcept = default;
AioHandle& AioHandle::operator=(AioHandle&&) noexcept = default;
AioHandle::~AioHandle() = default;

const AioOptions& AioHandle::options() const noexcept {
  return state_->options();
}
std::size_t AioHandle::alignment() const noexcept {
  return kSector * options().intra_op_parallelism;
}
void AioHandle::read(const AioMemory& memory, const AioPlace& place) {
  state_->run(AioOperation::open_read(memory, place));
}
void AioHandle::write(const AioMemory& memory, const AioPlace& place) {
  state_->run(AioOperation::open_write(memory, place));
}
void AioHandle::start_read(const AioMemory& memory, const AioPlace& place) {
  state_->start(AioOperation::open_read(memory, place));
}
void AioHandle::start_write(const AioMemory& memory, const AioPlace& place) {
  state_->start(AioOperation::open_write(memory, place));
}
std::size_t AioHandle::wait() {
  return state_->wait();
}
bool AioHandle::wait_for(double seconds) {
  return state_->wait_for(seconds);
}
std::size_t AioHandle::pending() const {
  return state_->pending();
}

LockedMemory allocate_locked(std::size_t nbytes) {
  auto mapping = std::make_shared<Mapping>(Mapping::anonymous(nbytes));
  const bool locked = ::mlock(mapping->data(), mapping->size()) == 0;
  return {mapping, mapping->data(), nbytes, locked};
}

}  // namespace penstock
