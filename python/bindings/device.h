// Memory that Python's libraries give, of a device most often, and what they call that device.
#pragma once

#include <cstdint>
#include <optional>

#include "callbacks.h"

namespace penstock::python {

// A device as DLPack counts.
struct DlpackDevice {
  std::int32_t type = 1;  // kDLCPU
  std::int32_t number = 0;

  bool is_host() const { return type == 1; }
};

// Where a load's tensors are to be: a callable that gives memory, and the device that this is on.
class PythonAllocator {
 public:
  // `allocate` takes a number of bytes and gives (address, owner, number of the device, address of a stream or None).
  PythonAllocator(nb::object allocate, std::pair<std::int32_t, std::int32_t> device);

  DlpackDevice device() const { return device_; }

  // For the options of a piece of work. What Python raises is raised by that.
  Allocator function(const std::shared_ptr<Callbacks>& callbacks) const;

 private:
  std::shared_ptr<nb::object> allocate_;
  DlpackDevice device_;
};

}  // namespace penstock::python
