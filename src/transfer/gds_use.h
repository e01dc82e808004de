// GdsUse: what one load or save has of GPUDirect Storage: files that devices read and write by themselves, and why not
// more of them. Safe from several threads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "device/device.h"
#include "penstock/options.h"

namespace penstock {

class GdsUse {
 public:
  // Decides, once, whether it is used at all: by what was asked for, the environment included, by what the caller knows
  // to stand against it (empty: nothing), by the rule of gds.h, and by asking the device.
  void start(DirectStorage asked, const std::string& obstacle, Device& device);
  bool is_on() const;

  // A file, for the device; the same each time. Null where it is refused. `fd`: with O_DIRECT.
  std::shared_ptr<DeviceFile> open(Device& device, int fd, const std::string& path);

  // As Device::register_for_files(). Null where that is refused, which is no obstacle.
  std::shared_ptr<void> register_memory(Device& device, std::uint64_t address, std::uint64_t nbytes);
  void note_unregistered(std::string reason);

  // Why some bytes, or all, go through staging: the first reason is told.
  void note_staged(std::string reason);

  // For Stats::gds. Where nobody has decided, all was copied before.
  std::string describe(std::uint64_t bytes_moved) const;

 private:
  void note(std::string& first, std::string reason);

  mutable std::mutex mutex_;
  bool started_ = false;
  bool on_ = false;
  std::map<std::pair<const Device*, int>, std::shared_ptr<DeviceFile>> files_;
  std::string staged_;
  std::string unregistered_;
};

}  // namespace penstock
