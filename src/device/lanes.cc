#include <algorithm>

#include "device/device.h"

namespace penstock {

void Lanes::wait_for(std::shared_ptr<const Moment> moment) {
  const std::lock_guard lock(mutex_);
  moments_.push_back(std::move(moment));
}

Lane& Lanes::mine() {
  const std::lock_guard lock(mutex_);
  Entry& entry = lanes_[std::this_thread::get_id()];
  if (entry.lane == nullptr) entry.lane = device_->make_lane();
  for (; entry.told < moments_.size(); ++entry.told) entry.lane->wait_for(moments_[entry.told]);
  return *entry.lane;
}

Lane& Lanes::started() noexcept {
  const std::lock_guard lock(mutex_);
  return *lanes_.find(std::this_thread::get_id())->second.lane;
}

void Lanes::settle() {
  std::vector<std::shared_ptr<const Moment>> open;
  std::size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    count = moments_.size();
    open.assign(moments_.begin() + static_cast<std::ptrdiff_t>(settled_), moments_.end());
  }
  for (const auto& moment : open) moment->wait();
  const std::lock_guard lock(mutex_);
  settled_ = std::max(settled_, count);
}

}  // namespace penstock
