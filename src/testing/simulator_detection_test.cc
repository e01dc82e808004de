// What the simulated accelerator finds wrong: each mistake is made here once, and found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "testing/simulated_context.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kBytes = 1 << 20;

// One pinned and one device allocation, and a stream.
class SimulatorDetection : public ::testing::Test {
 protected:
  void TearDown() override {
    sim.hold(false);
    EXPECT_EQ(context.api.stream_synchronize(stream), 0);
    EXPECT_EQ(context.api.stream_destroy(stream), 0);
    if (device != 0) {
      EXPECT_EQ(context.api.free(device), 0);
    }
    if (!pinned.empty()) {
      EXPECT_EQ(context.api.host_free(pinned.data()), 0);
    }
  }

  // As a drive writes: nobody but the simulator can tell.
  static void write_behind_the_back(std::span<std::byte> bytes) {
    ASSERT_EQ(syscall(SYS_getrandom, bytes.data(), 64, 0), 64);
  }

  SimulatedDevices sim;
  SimulatedContext context;
  cuda::Address device = context.allocate(kBytes);
  std::span<std::byte> pinned = context.allocate_pinned(kBytes);
  cuda::Stream stream = context.make_stream();
};

TEST_F(SimulatorDetection, source_that_changes_while_its_copy_is_queued) {
  sim.hold(true);
  ASSERT_EQ(context.api.copy_to_device(device, pinned.data(), kBytes, stream), 0);
  write_behind_the_back(pinned);
  sim.hold(false);
  ASSERT_EQ(context.api.stream_synchronize(stream), 0);
  EXPECT_THAT(sim.take_violations(),
              ElementsAre(HasSubstr("cuMemcpyHtoDAsync_v2: the source changed while its copy was queued")));
  EXPECT_TRUE(std::ranges::equal(sim.peek(device, kBytes), pinned));  // the late bytes, as on a real device
}

TEST_F(SimulatorDetection, source_that_changes_after_its_copy_is_all_right) {
  ASSERT_EQ(context.api.copy_to_device(device, pinned.data(), kBytes, stream), 0);
  ASSERT_EQ(context.api.stream_synchronize(stream), 0);
  write_behind_the_back(pinned);
  EXPECT_THAT(sim.take_violations(), IsEmpty());
}

TEST_F(SimulatorDetection, source_that_a_queued_copy_fills_is_all_right) {
  const cuda::Address other = context.allocate(kBytes);
  const std::vector<std::byte> bytes(kBytes, std::byte{9});
  sim.poke(device, bytes.data(), kBytes);
  sim.hold(true);
  ASSERT_EQ(context.api.copy_to_host(pinned.data(), device, kBytes, stream), 0);
  ASSERT_EQ(context.api.copy_to_device(other, pinned.data(), kBytes, stream), 0);
  sim.hold(false);
  ASSERT_EQ(context.api.stream_synchronize(stream), 0);
  EXPECT_EQ(sim.peek(other, kBytes), bytes);
  EXPECT_THAT(sim.take_violations(), IsEmpty());
  EXPECT_EQ(context.api.free(other), 0);
}

TEST_F(SimulatorDetection, pinned_memory_that_is_freed_early) {
  sim.hold(true);
  ASSERT_EQ(context.api.copy_to_device(device, pinned.data(), kBytes, stream), 0);
  ASSERT_EQ(context.api.host_free(pinned.data()), 0);
  pinned = {};
  EXPECT_THAT(sim.take_violations(),
              ElementsAre("cuMemFreeHost: pinned memory is freed while 1 of its copies are queued"));
}

TEST_F(SimulatorDetection, device_memory_that_is_freed_early) {
  sim.hold(true);
  ASSERT_EQ(context.api.copy_to_device(device, pinned.data(), kBytes / 2, stream), 0);
  ASSERT_EQ(context.api.copy_to_device(device + kBytes / 2, pinned.data(), kBytes / 2, stream), 0);
  ASSERT_EQ(context.api.free(device), 0);
  device = 0;
  EXPECT_THAT(sim.take_violations(),
              ElementsAre("cuMemFree_v2: device memory is freed while 2 of its copies are queued"));
}

TEST_F(SimulatorDetection, registered_memory_that_goes_early) {
  void* const data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_EQ(context.api.host_register(data, kBytes, 0), 0);
  sim.hold(true);
  ASSERT_EQ(context.api.copy_to_device(device, data, kBytes, stream), 0);
  munmap(data, kBytes);
  ASSERT_EQ(context.api.host_unregister(data), 0);
  EXPECT_THAT(sim.take_violations(),
              ElementsAre("cuMemHostUnregister: registered memory is unregistered while 1 of its copies are queued",
                          "cuMemHostUnregister: registered memory was unmapped before it is unregistered"));
  sim.hold(false);
  ASSERT_EQ(context.api.stream_synchronize(stream), 0);
  EXPECT_THAT(sim.take_violations(), ElementsAre(HasSubstr("the source was unmapped while its copy was queued")));
}

TEST_F(SimulatorDetection, destination_that_is_unmapped_early) {
  void* const data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_EQ(context.api.host_register(data, kBytes, 0), 0);
  sim.hold(true);
  ASSERT_EQ(context.api.copy_to_host(data, device, kBytes, stream), 0);
  munmap(data, kBytes);
  sim.hold(false);
  ASSERT_EQ(context.api.stream_synchronize(stream), 0);
  EXPECT_THAT(sim.take_violations(), ElementsAre(HasSubstr("the destination was unmapped while its copy was queued")));
  ASSERT_EQ(context.api.host_unregister(data), 0);
  sim.take_violations();
}

TEST_F(SimulatorDetection, copies_past_the_end) {
  EXPECT_EQ(context.api.copy_to_device(device + 1, pinned.data(), kBytes, stream), cuda::kInvalidValue);
  EXPECT_EQ(context.api.copy_to_host(pinned.data() + 1, device, kBytes, stream), cuda::kInvalidValue);
  EXPECT_THAT(sim.take_violations(),
              ElementsAre("cuMemcpyHtoDAsync_v2: the destination runs past the end of device memory",
                          "cuMemcpyDtoHAsync_v2: the destination runs past the end of pinned memory"));
}

TEST_F(SimulatorDetection, memory_of_the_wrong_kind) {
  const auto host = reinterpret_cast<cuda::Address>(pinned.data());
  EXPECT_EQ(context.api.copy_to_device(host, pinned.data(), 1, stream), cuda::kInvalidValue);
  EXPECT_EQ(context.api.copy_to_host(reinterpret_cast<void*>(device), device, 1, stream), cuda::kInvalidValue);
  EXPECT_EQ(context.api.free(host), cuda::kInvalidValue);
  EXPECT_EQ(context.api.free(device + 512), cuda::kInvalidValue);
  EXPECT_EQ(context.api.host_unregister(pinned.data()), 713);
  const std::vector<std::string> found = sim.take_violations();
  ASSERT_EQ(found.size(), 5u);
  EXPECT_THAT(found[0], HasSubstr("is pinned memory, not device memory"));
  EXPECT_THAT(found[1], HasSubstr("the destination is device memory, not the host's"));
  EXPECT_THAT(found[2], HasSubstr("is pinned memory"));
  EXPECT_THAT(found[3], HasSubstr("in the middle of an allocation"));
  EXPECT_THAT(found[4], HasSubstr("was not registered"));
}

TEST_F(SimulatorDetection, no_current_context) {
  ASSERT_EQ(context.api.pop_context(nullptr), 0);
  EXPECT_EQ(context.api.copy_to_device(device, pinned.data(), kBytes, stream), cuda::kInvalidContext);
  ASSERT_EQ(context.api.push_context(context.handle), 0);
  EXPECT_THAT(sim.take_violations(), ElementsAre("cuMemcpyHtoDAsync_v2: no context is current on this thread"));
}

TEST_F(SimulatorDetection, another_devices_context) {
  const SimulatedContext second(1);
  EXPECT_EQ(second.api.copy_to_device(device, pinned.data(), kBytes, stream), 400);
  EXPECT_EQ(second.api.copy_to_device(device, pinned.data(), kBytes, nullptr), cuda::kInvalidValue);
  const cuda::Event event = second.make_event();
  EXPECT_EQ(second.api.event_record(event, stream), 400);
  EXPECT_EQ(second.api.event_destroy(event), 0);
  EXPECT_THAT(sim.take_violations(),
              ElementsAre("cuMemcpyHtoDAsync_v2: the stream is of device 0, the context of device 1",
                          "cuMemcpyHtoDAsync_v2: the destination is memory of device 0, the context is of device 1",
                          "cuEventRecord: the event is of device 1, the stream of device 0"));
}

TEST_F(SimulatorDetection, streams_and_events_that_were_destroyed) {
  const cuda::Stream gone = context.make_stream();
  const cuda::Event event = context.make_event();
  ASSERT_EQ(context.api.stream_destroy(gone), 0);
  ASSERT_EQ(context.api.event_destroy(event), 0);
  EXPECT_EQ(context.api.stream_synchronize(gone), 400);
  EXPECT_EQ(context.api.event_query(event), 400);
  EXPECT_THAT(sim.take_violations(), ElementsAre(HasSubstr("does not exist"), HasSubstr("does not exist")));
}

TEST_F(SimulatorDetection, context_that_ends_with_something_in_it) {
  cuda::Address left = 0;
  {
    const SimulatedContext second(1);
    left = second.allocate(kBytes);
  }
  EXPECT_THAT(sim.take_violations(), ElementsAre(HasSubstr("the context of device 1 ends with 0 streams and 1 alloc")));
  const SimulatedContext again(1);
  EXPECT_EQ(again.api.free(left), 0);
}

TEST_F(SimulatorDetection, pageable_copies) {
  std::vector<std::byte> pageable(kBytes, std::byte{5});
  sim.hold(true);
  ASSERT_EQ(context.api.copy_to_device(device, pageable.data(), kBytes, stream), 0);
  std::ranges::fill(pageable, std::byte{6});  // free again when the call is over
  sim.hold(false);
  ASSERT_EQ(context.api.stream_synchronize(stream), 0);
  EXPECT_EQ(sim.peek(device, kBytes), std::vector<std::byte>(kBytes, std::byte{5}));
  ASSERT_EQ(context.api.copy_to_host(pageable.data(), device, kBytes, stream), 0);
  EXPECT_EQ(pageable[kBytes - 1], std::byte{5});
  EXPECT_EQ(sim.counters().pageable_copies, 2u);
  EXPECT_EQ(sim.counters().pageable_bytes, 2 * kBytes);

  sim.set("pageable", "refuse");
  EXPECT_EQ(context.api.copy_to_device(device, pageable.data(), kBytes, stream), cuda::kInvalidValue);
  EXPECT_THAT(sim.take_violations(), ElementsAre("cuMemcpyHtoDAsync_v2: the source is pageable memory"));
}

TEST_F(SimulatorDetection, host_cant_touch_device_memory) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  EXPECT_EQ(write(pipe_ends[1], "x", 1), 1);
  EXPECT_EQ(syscall(SYS_read, pipe_ends[0], device, 1), -1);
  EXPECT_EQ(errno, EFAULT);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

TEST_F(SimulatorDetection, use_after_fork) {
  const std::uint64_t before = sim.counters().calls_after_fork;
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    const bool refused = context.api.device_count(&count) == cuda::kNotInitialized &&
                         context.api.init(0) == cuda::kNotInitialized &&
                         context.api.stream_synchronize(stream) == cuda::kNotInitialized;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(sim.counters().calls_after_fork - before, 3u);
}

TEST_F(SimulatorDetection, leaks) {
  EXPECT_THAT(sim.leaks(SIM_DEVICE_MEMORY),
              ElementsAre("1048576 bytes of device memory made on device 0 are not freed"));
  EXPECT_THAT(sim.leaks(SIM_PINNED_MEMORY),
              ElementsAre("1048576 bytes of pinned memory made on device 0 are not freed"));
  EXPECT_THAT(sim.leaks(SIM_STREAMS), ElementsAre("1 streams are not destroyed"));
  EXPECT_THAT(sim.leaks(SIM_EVENTS), IsEmpty());
  EXPECT_THAT(sim.leaks(SIM_CONTEXTS), ElementsAre("the context of device 0 is retained 1 times"));
  const cuda::Event event = context.make_event();
  EXPECT_THAT(sim.leaks(SIM_EVENTS), ElementsAre("1 events are not destroyed"));
  EXPECT_EQ(context.api.event_destroy(event), 0);
}

}  // namespace
}  // namespace penstock::testing
