// How the simulated accelerator is made to fail, and how it is set up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "testing/simulated_context.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;

constexpr std::size_t kBytes = 1 << 20;

TEST(SimulatorFailure, nth_call_fails_once) {
  SimulatedDevices sim;
  const SimulatedContext context;
  sim.fail("cuDeviceGetCount:2:999,cuDeviceGet:1+:101");
  int count = 0;
  EXPECT_EQ(context.api.device_count(&count), 0);
  EXPECT_EQ(context.api.device_count(&count), 999);
  EXPECT_EQ(context.api.device_count(&count), 0);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(context.api.device_get(&count, 0), 101);
  EXPECT_EQ(context.api.device_get(&count, 0), 101);
  sim.fail("");
  EXPECT_EQ(context.api.device_get(&count, 0), 0);
}

TEST(SimulatorFailure, calls_are_counted) {
  SimulatedDevices sim;
  const SimulatedContext context;
  const std::uint64_t before = sim.calls("cuDeviceGetCount");
  int count = 0;
  EXPECT_EQ(context.api.device_count(&count), 0);
  EXPECT_EQ(sim.calls("cuDeviceGetCount") - before, 1u);
}

TEST(SimulatorFailure, what_cant_be_understood_is_refused) {
  SimulatedDevices sim;
  EXPECT_THROW(sim.fail("cuInit"), std::invalid_argument);
  EXPECT_THROW(sim.fail("cuInit:0:1"), std::invalid_argument);
  EXPECT_THROW(sim.fail("cuInit:1:x"), std::invalid_argument);
  EXPECT_THROW(sim.set("devices", 17), std::invalid_argument);
  EXPECT_THROW(sim.set("speed", 1), std::invalid_argument);
  EXPECT_THROW(sim.set("pageable", "never"), std::invalid_argument);
}

TEST(SimulatorFailure, copy_that_fails_late_loses_the_context) {
  SimulatedDevices sim;
  const SimulatedContext context;
  const cuda::Address device = context.allocate(kBytes);
  const std::span<std::byte> pinned = context.allocate_pinned(kBytes);
  std::memset(pinned.data(), 1, kBytes);
  const cuda::Stream stream = context.make_stream();
  const cuda::Event event = context.make_event();
  sim.fail("cuMemcpyHtoDAsync_v2:1:700:async");
  sim.hold(true);
  EXPECT_EQ(context.api.copy_to_device(device, pinned.data(), kBytes, stream), 0);
  EXPECT_EQ(context.api.event_record(event, stream), 0);
  EXPECT_EQ(context.api.event_query(event), cuda::kNotReady);
  sim.hold(false);
  EXPECT_EQ(context.api.event_synchronize(event), 700);
  EXPECT_EQ(context.api.event_query(event), 700);
  EXPECT_EQ(context.api.stream_synchronize(stream), 700);
  cuda::Address more = 0;
  EXPECT_EQ(context.api.allocate(&more, kBytes), 700);
  EXPECT_EQ(sim.peek(device, kBytes), std::vector<std::byte>(kBytes));
  // What is let go of counts, although the calls fail.
  EXPECT_EQ(context.api.event_destroy(event), 700);
  EXPECT_EQ(context.api.stream_destroy(stream), 700);
  EXPECT_EQ(context.api.free(device), 700);
  EXPECT_EQ(context.api.host_free(pinned.data()), 700);
}

TEST(SimulatorFailure, other_devices_work_when_one_is_lost) {
  SimulatedDevices sim;
  const SimulatedContext context;
  const cuda::Address device = context.allocate(kBytes);
  const std::byte host[8] = {};
  sim.fail("cuMemcpyHtoDAsync_v2:1:719:async");
  EXPECT_EQ(context.api.copy_to_device(device, host, sizeof host, nullptr), 0);
  EXPECT_EQ(context.api.stream_synchronize(nullptr), 719);
  {
    const SimulatedContext second(1);
    EXPECT_EQ(second.api.free(second.allocate(kBytes)), 0);
  }
  EXPECT_EQ(context.api.free(device), 719);
}

TEST(SimulatorFailure, memory_of_a_lost_device_may_be_freed_with_copies_queued) {
  SimulatedDevices sim;
  const SimulatedContext context;
  const cuda::Address device = context.allocate(kBytes);
  const std::span<std::byte> pinned = context.allocate_pinned(kBytes);
  const cuda::Stream stream = context.make_stream();
  const cuda::Stream other = context.make_stream();
  sim.set("link", kBytes);  // a second for the copy that goes on
  EXPECT_EQ(context.api.copy_to_device(device, pinned.data(), kBytes, other), 0);
  while (sim.counters().copies_at_once_peak == 0) std::this_thread::yield();
  sim.fail("cuMemcpyHtoDAsync_v2:1:719:async");
  EXPECT_EQ(context.api.copy_to_device(device, pinned.data(), 8, stream), 0);
  EXPECT_EQ(context.api.stream_synchronize(stream), 719);
  EXPECT_GT(sim.counters().copies_queued, 0u);
  EXPECT_EQ(context.api.free(device), 719);
  EXPECT_EQ(context.api.host_free(pinned.data()), 719);
  EXPECT_EQ(context.api.stream_destroy(other), 719);
  EXPECT_EQ(context.api.stream_destroy(stream), 719);
}

TEST(SimulatorSettings, device_memory_ends) {
  SimulatedDevices sim;
  sim.set("memory", 10 * kBytes);
  const SimulatedContext context;
  const cuda::Address first = context.allocate(9 * kBytes);
  cuda::Address second = 0;
  EXPECT_EQ(context.api.allocate(&second, 2 * kBytes), cuda::kOutOfMemory);
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_EQ(context.api.memory_info(&free, &total), 0);
  EXPECT_EQ(free, kBytes);
  EXPECT_EQ(total, 10 * kBytes);
  EXPECT_EQ(context.api.free(first), 0);
  EXPECT_EQ(context.api.allocate(&second, 10 * kBytes), 0);
  EXPECT_EQ(context.api.free(second), 0);
  EXPECT_EQ(sim.counters().device_bytes_peak, 10 * kBytes);
}

TEST(SimulatorSettings, freed_holes_become_one) {
  SimulatedDevices sim;
  const SimulatedContext context;
  const cuda::Address first = context.allocate(kBytes);
  const cuda::Address second = context.allocate(kBytes);
  const cuda::Address third = context.allocate(kBytes);
  for (const cuda::Address each : {first, third, second}) {
    EXPECT_EQ(context.api.free(each), 0);
  }
  const cuda::Address all = context.allocate(3 * kBytes);
  EXPECT_EQ(all, first);
  EXPECT_EQ(context.api.free(all), 0);
}

TEST(SimulatorSettings, freed_memory_keeps_its_pages_only_on_request) {
  SimulatedDevices sim;
  const SimulatedContext context;
  const std::vector<std::byte> bytes(kBytes, std::byte{4});
  for (const bool keep : {false, true}) {
    sim.set("keep", keep ? 1 : 0);
    const cuda::Address first = context.allocate(kBytes);
    sim.poke(first, bytes.data(), kBytes);
    EXPECT_EQ(context.api.free(first), 0);
    const cuda::Address second = context.allocate(kBytes);
    EXPECT_EQ(second, first);
    EXPECT_EQ(sim.peek(second, kBytes), keep ? bytes : std::vector<std::byte>(kBytes));
    sim.set("keep", 0);
    EXPECT_EQ(context.api.free(second), 0);
  }
}

TEST(SimulatorSettings, no_device_and_an_old_driver) {
  SimulatedDevices sim;
  sim.set("devices", 0);
  sim.set("driver", 11040);
  const cuda::Api api = simulated_driver();
  EXPECT_EQ(api.init(0), cuda::kNoDevice);
  int version = 0;
  EXPECT_EQ(api.driver_version(&version), 0);
  EXPECT_EQ(version, 11040);
}

TEST(SimulatorSettings, pinning_is_refused_above_a_limit) {
  SimulatedDevices sim;
  sim.set("register_limit", kBytes);
  const SimulatedContext context;
  std::vector<std::byte> memory(2 * kBytes);
  EXPECT_EQ(context.api.host_register(memory.data(), 2 * kBytes, 0), cuda::kOutOfMemory);
  EXPECT_EQ(context.api.host_register(memory.data(), kBytes, 0), 0);
  EXPECT_EQ(context.api.host_register(memory.data() + kBytes - 1, kBytes, 0), cuda::kHostMemoryAlreadyRegistered);
  sim.set("pinned_limit", 2 * kBytes - 1);
  EXPECT_EQ(context.api.host_register(memory.data() + kBytes, kBytes, 0), cuda::kOutOfMemory);
  void* data = nullptr;
  EXPECT_EQ(context.api.host_allocate(&data, kBytes, 0), cuda::kOutOfMemory);
  EXPECT_EQ(context.api.host_unregister(memory.data()), 0);
  EXPECT_EQ(sim.counters().pinned_bytes_peak, kBytes);
  EXPECT_EQ(sim.counters().pinned_bytes, 0u);
}

TEST(SimulatorSettings, unified_devices_say_so) {
  SimulatedDevices sim;
  const SimulatedContext context;
  const auto attribute = [&](int which) {
    int value = -1;
    EXPECT_EQ(context.api.device_attribute(&value, which, 0), 0);
    return value;
  };
  EXPECT_EQ(attribute(cuda::kAttributeIntegrated), 0);
  EXPECT_EQ(attribute(cuda::kAttributePageableMemoryAccess), 0);
  sim.set("unified", 1);
  sim.set("numa", "-1");
  EXPECT_EQ(attribute(cuda::kAttributeIntegrated), 1);
  EXPECT_EQ(attribute(cuda::kAttributePageableMemoryAccess), 1);
  EXPECT_EQ(attribute(cuda::kAttributeHostNumaId), -1);
}

TEST(SimulatorSettings, managed_memory_is_the_hosts_too) {
  SimulatedDevices sim;
  const SimulatedContext context;
  using Allocate = cuda::Result(cuda::Address*, std::size_t, unsigned);
  cuda::Address managed = 0;
  ASSERT_EQ(SimulatedDevices::symbol<Allocate>("cuMemAllocManaged")(&managed, kBytes, cuda::kAttachGlobal), 0);
  std::memset(reinterpret_cast<void*>(managed), 3, kBytes);
  unsigned char is_managed = 0;
  unsigned type = 0;
  EXPECT_EQ(context.api.pointer_attribute(&is_managed, cuda::kPointerIsManaged, managed + 5), 0);
  EXPECT_EQ(context.api.pointer_attribute(&type, cuda::kPointerMemoryType, managed + 5), 0);
  EXPECT_EQ(is_managed, 1);
  EXPECT_EQ(type, cuda::kMemoryDevice);
  const cuda::Address device = context.allocate(kBytes);
  EXPECT_EQ(context.api.copy_to_device(device, reinterpret_cast<void*>(managed), kBytes, nullptr), 0);
  EXPECT_EQ(context.api.stream_synchronize(nullptr), 0);
  EXPECT_EQ(sim.peek(device, kBytes), std::vector<std::byte>(kBytes, std::byte{3}));
  EXPECT_EQ(sim.counters().pageable_copies, 0u);
  EXPECT_EQ(context.api.free(device), 0);
  EXPECT_EQ(context.api.free(managed), 0);
}

TEST(SimulatorSettings, pointer_attributes_name_the_device_and_the_range) {
  SimulatedDevices sim;
  const SimulatedContext context(1);
  const cuda::Address address = context.allocate(kBytes);
  int device = -1;
  cuda::Address start = 0;
  std::size_t nbytes = 0;
  cuda::Context handle = nullptr;
  EXPECT_EQ(context.api.pointer_attribute(&device, cuda::kPointerDeviceOrdinal, address + 9), 0);
  EXPECT_EQ(context.api.pointer_attribute(&start, cuda::kPointerRangeStart, address + 9), 0);
  EXPECT_EQ(context.api.pointer_attribute(&nbytes, cuda::kPointerRangeSize, address + 9), 0);
  EXPECT_EQ(context.api.pointer_attribute(&handle, cuda::kPointerContext, address + 9), 0);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(start, address);
  EXPECT_EQ(nbytes, kBytes);
  EXPECT_EQ(handle, context.handle);
  const auto host = reinterpret_cast<cuda::Address>(&device);
  EXPECT_EQ(context.api.pointer_attribute(&start, cuda::kPointerRangeStart, host), cuda::kInvalidValue);
  EXPECT_EQ(context.api.free(address), 0);
}

TEST(SimulatorSettings, contexts_are_counted_by_device) {
  SimulatedDevices sim;
  const sim_counters before = sim.counters();
  {
    const SimulatedContext context(1);
    EXPECT_EQ(sim.counters().contexts, before.contexts + 1);
  }
  const sim_counters after = sim.counters();
  EXPECT_EQ(after.contexts_made[0], before.contexts_made[0]);
  EXPECT_EQ(after.contexts_made[1], before.contexts_made[1] + 1);
  EXPECT_EQ(after.contexts, before.contexts);
}

TEST(SimulatorSettings, functions_are_found_by_the_name_without_a_version) {
  SimulatedDevices sim;
  using Find = cuda::Result(const char*, void**, int, std::uint64_t, int*);
  Find* const find = SimulatedDevices::symbol<Find>("cuGetProcAddress_v2");
  void* function = nullptr;
  int status = -1;
  EXPECT_EQ(find("cuMemAlloc", &function, 12000, 0, &status), 0);
  EXPECT_EQ(function, reinterpret_cast<void*>(simulated_driver().allocate));
  EXPECT_EQ(find("cuNothing", &function, 12000, 0, &status), 500);
  EXPECT_EQ(function, nullptr);
}

}  // namespace
}  // namespace penstock::testing
