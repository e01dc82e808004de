// In which order the simulated accelerator works, and what it counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <vector>

#include "testing/simulated_context.h"

namespace penstock::testing {
namespace {

constexpr std::size_t kBytes = 1 << 20;

// Work that keeps a stream busy until it is told to go on.
class Obstacle {
 public:
  Obstacle(cuda::Stream stream) {
    using Launch = cuda::Result(cuda::Stream, void (*)(void*), void*);
    const auto wait = [](void* self) { static_cast<Obstacle*>(self)->gone_.get_future().wait(); };
    EXPECT_EQ(SimulatedDevices::symbol<Launch>("cuLaunchHostFunc")(stream, wait, this), 0);
  }
  void remove() { gone_.set_value(); }

 private:
  std::promise<void> gone_;
};

class SimulatorOrder : public ::testing::Test {
 protected:
  SimulatorOrder() { std::ranges::fill(pinned, std::byte{7}); }

  void TearDown() override {
    EXPECT_EQ(context.api.free(device), 0);
    EXPECT_EQ(context.api.host_free(pinned.data()), 0);
  }

  bool over(cuda::Event event) const {
    const cuda::Result result = context.api.event_query(event);
    EXPECT_TRUE(result == cuda::kSuccess || result == cuda::kNotReady) << result;
    return result == cuda::kSuccess;
  }

  void copy(cuda::Stream stream) const {
    EXPECT_EQ(context.api.copy_to_device(device, pinned.data(), kBytes, stream), 0);
  }

  SimulatedDevices sim;
  SimulatedContext context;
  cuda::Address device = context.allocate(kBytes);
  std::span<std::byte> pinned = context.allocate_pinned(kBytes);
};

TEST_F(SimulatorOrder, bytes_go_there_and_back) {
  const cuda::Address other = context.allocate(kBytes);
  const std::span<std::byte> back = context.allocate_pinned(kBytes);
  const cuda::Stream stream = context.make_stream();
  copy(stream);
  ASSERT_EQ(context.api.copy_within(other, device, kBytes, stream), 0);
  ASSERT_EQ(context.api.copy_to_host(back.data(), other, kBytes, stream), 0);
  ASSERT_EQ(context.api.stream_synchronize(stream), 0);
  EXPECT_TRUE(std::ranges::equal(back, pinned));
  const sim_counters counters = sim.counters();
  EXPECT_EQ(counters.copies_to_device, 1u);
  EXPECT_EQ(counters.bytes_within_device, kBytes);
  EXPECT_EQ(counters.bytes_to_host, kBytes);
  EXPECT_EQ(counters.pageable_copies, 0u);
  EXPECT_EQ(counters.copies_queued, 0u);
  EXPECT_EQ(counters.device_bytes, 2 * kBytes);
  EXPECT_EQ(counters.pinned_bytes_peak, 2 * kBytes);
  EXPECT_EQ(context.api.stream_destroy(stream), 0);
  EXPECT_EQ(context.api.host_free(back.data()), 0);
  EXPECT_EQ(context.api.free(other), 0);
}

TEST_F(SimulatorOrder, processor_time_of_copies_is_told_apart) {
  const auto copy_cpu_ns = SimulatedDevices::symbol<decltype(sim_copy_cpu_ns)>("sim_copy_cpu_ns");
  const std::uint64_t before = copy_cpu_ns();
  const cuda::Stream stream = context.make_stream();
  copy(stream);
  ASSERT_EQ(context.api.stream_synchronize(stream), 0);
  EXPECT_GT(copy_cpu_ns(), before);
  EXPECT_EQ(context.api.stream_destroy(stream), 0);
}

TEST_F(SimulatorOrder, event_passes_after_what_was_queued_before_it) {
  const cuda::Stream stream = context.make_stream();
  const cuda::Event event = context.make_event();
  EXPECT_TRUE(over(event));  // never recorded
  sim.hold(true);
  copy(stream);
  ASSERT_EQ(context.api.event_record(event, stream), 0);
  EXPECT_FALSE(over(event));
  EXPECT_EQ(sim.counters().copies_queued, 1u);
  sim.hold(false);
  ASSERT_EQ(context.api.event_synchronize(event), 0);
  EXPECT_TRUE(over(event));
  EXPECT_EQ(sim.counters().copies_to_device, 1u);
  EXPECT_EQ(context.api.event_destroy(event), 0);
  EXPECT_EQ(context.api.stream_destroy(stream), 0);
}

TEST_F(SimulatorOrder, stream_waits_for_an_event_of_another) {
  const cuda::Stream first = context.make_stream();
  const cuda::Stream second = context.make_stream();
  const cuda::Event event = context.make_event();
  const cuda::Event after = context.make_event();
  Obstacle obstacle(first);
  ASSERT_EQ(context.api.event_record(event, first), 0);
  ASSERT_EQ(context.api.stream_wait(second, event, 0), 0);
  copy(second);
  ASSERT_EQ(context.api.event_record(after, second), 0);
  EXPECT_FALSE(over(after));
  EXPECT_EQ(sim.counters().copies_to_device, 0u);
  obstacle.remove();
  ASSERT_EQ(context.api.event_synchronize(after), 0);
  EXPECT_TRUE(over(event));
  EXPECT_EQ(sim.counters().copies_to_device, 1u);
  for (const cuda::Event each : {event, after}) {
    EXPECT_EQ(context.api.event_destroy(each), 0);
  }
  for (const cuda::Stream each : {first, second}) {
    EXPECT_EQ(context.api.stream_destroy(each), 0);
  }
}

TEST_F(SimulatorOrder, null_stream_waits_for_blocking_streams_and_not_for_others) {
  const cuda::Stream blocking = context.make_stream(0);
  const cuda::Stream other = context.make_stream();
  const cuda::Event event = context.make_event();
  Obstacle of_other(other);
  copy(nullptr);
  ASSERT_EQ(context.api.stream_synchronize(nullptr), 0);  // else it would not return
  Obstacle of_blocking(blocking);
  copy(nullptr);
  ASSERT_EQ(context.api.event_record(event, nullptr), 0);
  EXPECT_FALSE(over(event));
  of_blocking.remove();
  ASSERT_EQ(context.api.event_synchronize(event), 0);
  EXPECT_EQ(sim.counters().copies_to_device, 2u);
  of_other.remove();
  EXPECT_EQ(context.api.event_destroy(event), 0);
  EXPECT_EQ(context.api.stream_synchronize(other), 0);
  for (const cuda::Stream each : {blocking, other}) {
    EXPECT_EQ(context.api.stream_destroy(each), 0);
  }
}

TEST_F(SimulatorOrder, blocking_stream_waits_for_the_null_stream) {
  const cuda::Stream blocking = context.make_stream(0);
  const cuda::Stream other = context.make_stream();
  const cuda::Event event = context.make_event();
  Obstacle obstacle(nullptr);
  copy(other);
  ASSERT_EQ(context.api.stream_synchronize(other), 0);
  copy(blocking);
  ASSERT_EQ(context.api.event_record(event, blocking), 0);
  EXPECT_FALSE(over(event));
  obstacle.remove();
  ASSERT_EQ(context.api.event_synchronize(event), 0);
  EXPECT_EQ(context.api.event_destroy(event), 0);
  for (const cuda::Stream each : {blocking, other}) {
    EXPECT_EQ(context.api.stream_destroy(each), 0);
  }
}

TEST_F(SimulatorOrder, destroyed_stream_still_does_what_is_queued) {
  const cuda::Stream stream = context.make_stream();
  const cuda::Event event = context.make_event();
  sim.hold(true);
  copy(stream);
  ASSERT_EQ(context.api.event_record(event, stream), 0);
  ASSERT_EQ(context.api.stream_destroy(stream), 0);
  sim.hold(false);
  ASSERT_EQ(context.api.event_synchronize(event), 0);
  EXPECT_EQ(sim.peek(device, kBytes), std::vector<std::byte>(kBytes, std::byte{7}));
  EXPECT_EQ(context.api.event_destroy(event), 0);
}

TEST_F(SimulatorOrder, link_is_busy_for_the_time_that_its_rate_says) {
  sim.set("link_to_device", 1'000'000'000);
  sim.set("link_to_host", 500'000'000);
  const cuda::Stream first = context.make_stream();
  const cuda::Stream second = context.make_stream();
  copy(first);
  copy(second);
  ASSERT_EQ(context.api.stream_synchronize(second), 0);
  ASSERT_EQ(context.api.stream_synchronize(first), 0);
  ASSERT_EQ(context.api.copy_to_host(pinned.data(), device, kBytes, first), 0);
  ASSERT_EQ(context.api.stream_synchronize(first), 0);
  EXPECT_EQ(sim.counters().link_ns_to_device, 2 * kBytes);
  EXPECT_EQ(sim.counters().link_ns_to_host, 2 * kBytes);
  for (const cuda::Stream each : {first, second}) {
    EXPECT_EQ(context.api.stream_destroy(each), 0);
  }
}

}  // namespace
}  // namespace penstock::testing
