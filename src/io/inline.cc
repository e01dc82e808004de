// The backend that does each request where it is submitted.
#include <algorithm>
#include <vector>

#include "io/blocking.h"
#include "io/engine.h"

namespace penstock {
namespace {

class InlineEngine final : public Engine {
 public:
  std::string_view name() const noexcept override { return "inline"; }
  bool register_buffers(std::span<const iovec>) override { return false; }

  int submit(const IoRequest& request) override {
    completed_.push_back({request.tag, run_blocking(request)});
    return 0;
  }

  int wait(std::span<IoCompletion> completions) override {
    const std::size_t count = std::min(completions.size(), completed_.size());
    std::copy_n(completed_.begin(), count, completions.begin());
    completed_.erase(completed_.begin(), completed_.begin() + static_cast<std::ptrdiff_t>(count));
    return static_cast<int>(count);
  }

 private:
  std::vector<IoCompletion> completed_;
};

}  // namespace

std::unique_ptr<Engine> make_inline_engine() {
  return std::make_unique<InlineEngine>();
}

}  // namespace penstock
