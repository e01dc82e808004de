#include "transfer/gds_use.h"

#include <fmt/format.h>

#include "device/gds.h"
#include "penstock/error.h"
#include "transfer/settings.h"

namespace penstock {
namespace {

// Empty: nothing stands against it.
std::string obstacle_for(DirectStorage asked, const std::string& known, Device& device) {
  const DirectStorage decided = decide_gds(asked);
  if (decided == DirectStorage::kOff) {
    return asked == DirectStorage::kOff ? "it is turned off" : "PENSTOCK_GDS turns it off";
  }
  if (!known.empty()) return known;
  std::string reason = decided == DirectStorage::kOn ? gds_danger() : gds_obstacle(/*has_device=*/true);
  if (reason.empty()) device.start_files(reason);
  return reason;
}

}  // namespace

void GdsUse::start(DirectStorage asked, const std::string& obstacle, Device& device) {
  const std::lock_guard lock(mutex_);
  if (started_) return;
  staged_ = obstacle_for(asked, obstacle, device);
  on_ = staged_.empty();
  started_ = true;
}

bool GdsUse::is_on() const {
  const std::lock_guard lock(mutex_);
  return on_;
}

std::shared_ptr<DeviceFile> GdsUse::open(Device& device, int fd, const std::string& path) {
  {
    const std::lock_guard lock(mutex_);
    if (!on_) return nullptr;
    if (const auto known = files_.find({&device, fd}); known != files_.end()) return known->second;
  }
  std::shared_ptr<DeviceFile> file;
  try {
    file = device.open_file(fd, path);
  } catch (const Error& error) {
    note_staged(error.what());
  }
  const std::lock_guard lock(mutex_);
  return files_[{&device, fd}] = std::move(file);
}

std::shared_ptr<void> GdsUse::register_memory(Device& device, std::uint64_t address, std::uint64_t nbytes) {
  std::string reason;
  std::shared_ptr<void> registered = device.register_for_files(address, nbytes, reason);
  if (registered == nullptr) note_unregistered(std::move(reason));
  return registered;
}

void GdsUse::note_unregistered(std::string reason) {
  note(unregistered_, std::move(reason));
}

void GdsUse::note_staged(std::string reason) {
  note(staged_, std::move(reason));
}

void GdsUse::note(std::string& first, std::string reason) {
  const std::lock_guard lock(mutex_);
  if (first.empty()) first = std::move(reason);
}

std::string GdsUse::describe(std::uint64_t bytes_moved) const {
  const std::lock_guard lock(mutex_);
  if (!started_) return "a snapshot was copied to the host first";
  if (bytes_moved == 0) return staged_.empty() ? "no tensors cover enough whole pages of their file" : staged_;
  std::string text = "used";
  if (!unregistered_.empty()) text += "; buffers are not registered: " + unregistered_;
  if (!staged_.empty()) text += "; not for all: " + staged_;
  return text;
}

}  // namespace penstock
