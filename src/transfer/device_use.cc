#include "transfer/device_use.h"

#include <algorithm>
#include <set>
#include <utility>

namespace penstock {

const std::shared_ptr<Lanes>& DeviceUse::lanes(const std::shared_ptr<Device>& device) {
  std::shared_ptr<Lanes>& found = lanes_[device.get()];
  if (found == nullptr) found = std::make_shared<Lanes>(device);
  if (first_ == nullptr) first_ = device;
  return found;
}

Passage DeviceUse::passage() const noexcept {
  if (empty()) return Passage::kHost;
  return gds_->is_on() ? Passage::kDirectStorage : Passage::kDevice;
}

void DeviceUse::start_gds(DirectStorage asked, const std::string& obstacle) {
  if (!empty()) gds_->start(asked, obstacle, *first_);
}

void DeviceUse::wait_for(Lanes& lanes, const DeviceStream& stream) {
  lanes.wait_for(lanes.device().moment(stream.handle));
}

void DeviceUse::wait_for_caller(std::span<const DeviceStream> streams) {
  for (const auto& [device, lanes] : lanes_) {
    const int number = device->info().number;
    bool is_given = false;
    for (const DeviceStream& stream : streams) {
      if (stream.device != number) continue;
      wait_for(*lanes, stream);
      is_given = true;
    }
    if (!is_given) wait_for(*lanes, {number, nullptr});
  }
}

StagingFactory DeviceUse::staging(const Settings& settings, std::shared_ptr<HostPool> pool) {
  if (empty()) return host_staging(std::move(pool));
  share_ = PinnedPool::process().join(first_, settings.block_size);
  return pinned_staging(share_);
}

void DeviceUse::describe(Stats& stats) const {
  if (empty()) return;
  std::set<std::string> names;
  for (const auto& [device, lanes] : lanes_) names.insert(device->name());
  for (const std::string& name : names) stats.device += (stats.device.empty() ? "" : ", ") + name;
  if (share_ != nullptr) stats.pinning = share_->pinning();
  stats.gds = gds_->describe(stats.bytes_gds);
}

}  // namespace penstock
