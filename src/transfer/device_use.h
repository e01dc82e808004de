// DeviceUse: what one load or save has of devices: lanes on each of them, and a share of the pinned memory.
//
// Made by the thread that called, before its crew starts; the lanes are then used by the crew's threads. Empty where
// all memory is the host's: then nothing of a driver is touched.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>

#include "device/device.h"
#include "device/pinned_pool.h"
#include "penstock/options.h"
#include "transfer/gds_use.h"
#include "transfer/settings.h"
#include "transfer/staging.h"

namespace penstock {

class DeviceUse {
 public:
  // The lanes on a device; the same ones each time.
  const std::shared_ptr<Lanes>& lanes(const std::shared_ptr<Device>& device);

  bool empty() const noexcept { return lanes_.empty(); }
  Passage passage() const noexcept;

  // Decides whether devices move bytes by themselves; see GdsUse::start(). Nothing where there is no device.
  void start_gds(DirectStorage asked, const std::string& obstacle);
  const std::shared_ptr<GdsUse>& gds() const noexcept { return gds_; }

  // Copies wait for what is queued on the caller's streams now; on devices of which none is given, on the default one.
  void wait_for_caller(std::span<const DeviceStream> streams);
  // The same for one stream of one device.
  static void wait_for(Lanes& lanes, const DeviceStream& stream);

  // Pinned blocks where there is a device, those of the pool where not. Once.
  StagingFactory staging(const Settings& settings, std::shared_ptr<HostPool> pool);

  // Device, pinning and whether cuFile moved the bytes.
  void describe(Stats& stats) const;

 private:
  std::map<const Device*, std::shared_ptr<Lanes>> lanes_;
  std::shared_ptr<Device> first_;
  std::shared_ptr<PinnedPool::Share> share_;
  std::shared_ptr<GdsUse> gds_ = std::make_shared<GdsUse>();
};

}  // namespace penstock
