#include "testing/fault_engine.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <random>
#include <thread>

namespace penstock::testing {
namespace {

class FaultEngine final : public Engine {
 public:
  FaultEngine(std::unique_ptr<Engine> inner, const Faults& faults, std::uint32_t seed,
              std::shared_ptr<FaultCounts> shared, FaultCounts* counts)
      : inner_(std::move(inner)), faults_(faults), random_(seed), shared_(std::move(shared)), counts_(counts) {}

  std::string_view name() const noexcept override { return inner_->name(); }
  bool register_buffers(std::span<const iovec> buffers) override { return inner_->register_buffers(buffers); }

  int submit(const IoRequest& request) override {
    const std::int64_t number = shared_->requests++;
    if (counts_ != nullptr) ++counts_->requests;
    if (faults_.delay_microseconds > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(faults_.delay_microseconds));
    }
    if (number == faults_.fail_at) return answer(request, -faults_.error_number);
    if (happens(faults_.interrupted)) return answer(request, -EINTR);
    if (happens(faults_.try_again)) return answer(request, -EAGAIN);
    IoRequest changed = request;
    if (request.length > faults_.short_granule && happens(faults_.short_transfer)) {
      const std::uint32_t granules = request.length / faults_.short_granule;
      changed.length = std::max(1u, static_cast<std::uint32_t>(random_() % granules)) * faults_.short_granule;
      count();
    }
    const int result = inner_->submit(changed);
    if (result == 0) ++in_flight_;
    return result;
  }

  int wait(std::span<IoCompletion> completions) override {
    if (faults_.break_at >= 0 && shared_->requests > faults_.break_at) return -EBADF;
    if (ready_.empty() || in_flight_ > 0) {
      const int result = collect(completions.size());
      if (result < 0) return result;
    }
    if (ready_.size() > 1 && happens(faults_.held_back)) {
      std::rotate(ready_.begin(), ready_.begin() + 1, ready_.end());
      count();
    }
    const std::size_t count = std::min(completions.size(), ready_.size());
    std::copy_n(ready_.begin(), count, completions.begin());
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count));
    return static_cast<int>(count);
  }

 private:
  bool happens(double chance) { return chance > 0 && std::uniform_real_distribution<>(0, 1)(random_) < chance; }

  void count() {
    ++shared_->injected;
    if (counts_ != nullptr) ++counts_->injected;
  }

  int answer(const IoRequest& request, int result) {
    count();
    ready_.push_back({request.tag, result});
    return 0;
  }

  int collect(std::size_t most) {
    if (in_flight_ == 0) return 0;
    std::vector<IoCompletion> completed(most);
    const int found = inner_->wait(completed);
    for (int i = 0; i < found; ++i) ready_.push_back(completed[static_cast<std::size_t>(i)]);
    in_flight_ -= static_cast<std::size_t>(std::max(found, 0));
    return found;
  }

  std::unique_ptr<Engine> inner_;
  const Faults faults_;
  std::mt19937 random_;
  std::shared_ptr<FaultCounts> shared_;
  FaultCounts* counts_;
  std::deque<IoCompletion> ready_;
  std::size_t in_flight_ = 0;
};

}  // namespace

EngineFactory with_faults(EngineFactory inner, const Faults& faults, FaultCounts* counts) {
  auto shared = std::make_shared<FaultCounts>();
  auto made = std::make_shared<std::atomic<std::uint32_t>>(0);
  return [inner = std::move(inner), faults, counts, shared, made](unsigned depth) -> std::unique_ptr<Engine> {
    return std::make_unique<FaultEngine>(inner(depth), faults, faults.seed + (*made)++, shared, counts);
  };
}

}  // namespace penstock::testing
