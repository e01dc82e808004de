// SimulatedContext: a device of the simulated accelerator, current on this thread, and the driver's functions by name.
// For tests that play the caller's part: what penstock itself does goes through src/device.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "device/cuda_api.h"
#include "testing/simulator.h"

namespace penstock::testing {

// Every function that penstock binds, of the simulated driver.
inline cuda::Api simulated_driver() {
  cuda::Api api;
#define PENSTOCK_FIND(member, symbol_name, parameters) \
  api.member = SimulatedDevices::symbol<std::remove_pointer_t<decltype(api.member)>>(#symbol_name);
  PENSTOCK_CUDA_SYMBOLS(PENSTOCK_FIND)
#undef PENSTOCK_FIND
  return api;
}

class SimulatedContext {
 public:
  explicit SimulatedContext(int device = 0) : device_(device) {
    EXPECT_EQ(api.init(0), 0);
    EXPECT_EQ(api.primary_retain(&handle, device), 0);
    EXPECT_EQ(api.push_context(handle), 0);
  }
  ~SimulatedContext() {
    EXPECT_EQ(api.pop_context(nullptr), 0);
    EXPECT_EQ(api.primary_release(device_), 0);
  }
  SimulatedContext(const SimulatedContext&) = delete;
  SimulatedContext& operator=(const SimulatedContext&) = delete;

  cuda::Address allocate(std::size_t nbytes) const {
    cuda::Address address = 0;
    EXPECT_EQ(api.allocate(&address, nbytes), 0);
    return address;
  }
  std::span<std::byte> allocate_pinned(std::size_t nbytes) const {
    void* data = nullptr;
    EXPECT_EQ(api.host_allocate(&data, nbytes, 0), 0);
    return {static_cast<std::byte*>(data), nbytes};
  }
  cuda::Stream make_stream(unsigned flags = cuda::kStreamNonBlocking) const {
    cuda::Stream stream = nullptr;
    EXPECT_EQ(api.stream_create(&stream, flags), 0);
    return stream;
  }
  cuda::Event make_event() const {
    cuda::Event event = nullptr;
    EXPECT_EQ(api.event_create(&event, cuda::kEventDisableTiming), 0);
    return event;
  }

  const cuda::Api api = simulated_driver();
  cuda::Context handle = nullptr;

 private:
  const int device_;
};

}  // namespace penstock::testing
