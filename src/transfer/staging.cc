#include "transfer/staging.h"

#include <utility>
#include <vector>

namespace penstock {
namespace {

class HostStaging final : public Staging {
 public:
  HostStaging(HostPool& pool, std::size_t count, std::size_t block_size)
      : arena_(pool.allocate_staging(count * block_size)), size_(count * block_size) {
    for (std::size_t index = count; index > 0; --index) free_.push_back(arena_->data() + (index - 1) * block_size);
  }

  std::byte* take() override {
    if (free_.empty()) return nullptr;
    std::byte* const block = free_.back();
    free_.pop_back();
    return block;
  }
  void give_back(std::byte* block) noexcept override { free_.push_back(block); }
  void wait() noexcept override {}  // a worker has a block for each of its slots
  std::span<std::byte> stretch() const noexcept override { return {arena_->data(), size_}; }

 private:
  const std::shared_ptr<Arena> arena_;
  const std::size_t size_;
  std::vector<std::byte*> free_;
};

class PinnedStaging final : public Staging {
 public:
  explicit PinnedStaging(std::shared_ptr<PinnedPool::Share> share) : share_(std::move(share)) {}

  std::byte* take() override { return share_->take(); }
  void give_back(std::byte* block) noexcept override { share_->give_back(block); }
  void wait() noexcept override { share_->wait(); }

 private:
  const std::shared_ptr<PinnedPool::Share> share_;
};

}  // namespace

StagingFactory host_staging(std::shared_ptr<HostPool> pool) {
  return [pool = std::move(pool)](std::size_t count, std::size_t block_size) {
    return std::make_unique<HostStaging>(*pool, count, block_size);
  };
}

StagingFactory pinned_staging(std::shared_ptr<PinnedPool::Share> share) {
  return [share = std::move(share)](std::size_t, std::size_t) { return std::make_unique<PinnedStaging>(share); };
}

}  // namespace penstock
