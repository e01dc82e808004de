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
  while (entry.told < moments_.size()) entry.lane->wait_for(moments_[entry.told++]);
  return *entry.lane;
}

}  // namespace penstock
