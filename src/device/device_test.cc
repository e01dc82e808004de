// The driver's library that is missing, or not what it should be; pinned memory; copies of whole stretches.
#include "device/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "base/bytes.h"
#include "base/tuning.h"
#include "device/cuda_api.h"
#include "device/pinned_pool.h"
#include "testing/errors.h"
#include "testing/files.h"
#include "testing/simulator.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::SimulatedDevices;

std::string why_no_devices() {
  std::string why;
  EXPECT_TRUE(list_devices(&why).empty());
  return why;
}

TEST(DriverTest, a_library_that_does_not_exist_is_named_and_host_memory_is_host_memory) {
  ::setenv("PENSTOCK_LIBCUDA", "/nowhere/libcuda.so.1", 1);
  EXPECT_THAT(why_no_devices(), HasSubstr("/nowhere/libcuda.so.1"));
  EXPECT_THAT(message_of([] { open_device(0); }), HasSubstr("no device can be used: /nowhere/libcuda.so.1"));
  int here = 0;
  EXPECT_EQ(device_of(&here), std::nullopt);
}

TEST(DriverTest, a_library_that_is_another_one_lacks_a_symbol_that_is_named) {
  ::setenv("PENSTOCK_LIBCUDA", "libm.so.6", 1);
  EXPECT_THAT(why_no_devices(), HasSubstr("libm.so.6 has no cuInit"));
}

TEST(DriverTest, a_driver_that_is_too_old_is_refused_with_its_version) {
  SimulatedDevices sim;
  sim.set("driver", 11040);
  EXPECT_THAT(why_no_devices(), HasSubstr("is a driver for CUDA 11.4, and 12.0 or newer is needed"));
}

TEST(DriverTest, a_driver_without_devices_says_so) {
  SimulatedDevices sim;
  sim.set("devices", "0");
  EXPECT_THAT(why_no_devices(), HasSubstr("cuInit failed: CUDA_ERROR_NO_DEVICE"));
}

TEST(DriverTest, a_driver_that_does_not_tell_its_devices_is_not_one_without_devices) {
  SimulatedDevices sim;
  sim.fail("cuDeviceGetCount:1:999");
  EXPECT_THAT(why_no_devices(), HasSubstr("cuDeviceGetCount failed: CUDA_ERROR_UNKNOWN"));
  sim.fail("cuDeviceGetCount:1:999");
  EXPECT_THAT(message_of([] { open_device(0); }), HasSubstr("cuDeviceGetCount failed: CUDA_ERROR_UNKNOWN"));
  sim.fail("cuDeviceGet:1:999");
  EXPECT_THAT(message_of([] { open_device(1); }), HasSubstr("cuda:1: cuDeviceGet failed: CUDA_ERROR_UNKNOWN"));
  EXPECT_EQ(open_device(1)->info().number, 1);
}

TEST(DriverTest, devices_are_described_without_making_a_context) {
  SimulatedDevices sim;
  const std::vector<DeviceInfo> devices = list_devices();
  ASSERT_EQ(devices.size(), 2);
  EXPECT_EQ(devices[1].number, 1);
  EXPECT_THAT(devices[1].name, HasSubstr("cuda:1 ("));
  EXPECT_GT(devices[1].total_memory, 0);
  EXPECT_EQ(devices[1].numa_node, 0);
  EXPECT_EQ(sim.counters().contexts, 0);
}

// How often a file was opened since this was made.
class OpenCounter {
 public:
  explicit OpenCounter(const std::filesystem::path& path) : fd_(::inotify_init1(IN_NONBLOCK)) {
    EXPECT_GE(::inotify_add_watch(fd_, path.c_str(), IN_OPEN), 0);
  }
  ~OpenCounter() { ::close(fd_); }
  OpenCounter(const OpenCounter&) = delete;
  OpenCounter& operator=(const OpenCounter&) = delete;

  // Equal events in a row are one, so it is asked after each.
  unsigned count() {
    std::array<char, 4096> events{};
    while (::read(fd_, events.data(), events.size()) > 0) ++count_;
    return count_;
  }

 private:
  const int fd_;
  unsigned count_ = 0;
};

TEST(DriverTest, the_loader_is_asked_for_a_driver_again_only_when_it_has_loaded_something) {
  const testing::TempDir directory;
  const std::filesystem::path library = directory / "libcuda.so.1";
  testing::write_file(library, "no library");
  ::setenv("PENSTOCK_LIBCUDA", library.c_str(), 1);
  OpenCounter opened(library);
  int here = 0;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(device_of(&here), std::nullopt);
    EXPECT_EQ(opened.count(), 1u);
  }
  const SimulatedDevices sim;
  const AllocatedMemory memory = device_allocator(1)(10);
  EXPECT_EQ(device_of(memory.data), 1);
}

class CopyTest : public ::testing::Test {
 protected:
  SimulatedDevices sim_;
};

TEST_F(CopyTest, stretches_go_there_and_back_through_a_few_pinned_blocks) {
  const AllocatedMemory memory = device_allocator(1)(11 * kMiB);
  for (const std::uint64_t nbytes : {std::uint64_t{0}, std::uint64_t{1}, 2 * kMiB, 11 * kMiB - 3}) {
    const std::vector<std::byte> sent = testing::random_bytes(nbytes);
    copy_to_device(memory.data, sent.data(), nbytes);
    std::vector<std::byte> received(nbytes);
    copy_to_host(received.data(), memory.data, nbytes);
    EXPECT_TRUE(received == sent) << nbytes;
  }
  EXPECT_EQ(sim_.counters().pageable_copies, 0);
  EXPECT_THAT(message_of([&] { copy_to_device(this, this, 1); }), HasSubstr("is not memory of a device"));
}

TEST_F(CopyTest, a_copy_that_fails_names_device_and_call_and_the_next_one_works) {
  const AllocatedMemory memory = device_allocator(0)(9 * kMiB);
  std::vector<std::byte> bytes(9 * kMiB);
  for (const std::string symbol : {"cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuEventCreate"}) {
    sim_.fail(symbol + ":3:999");
    const std::string message = message_of([&] {
      copy_to_device(memory.data, bytes.data(), bytes.size());
      open_device(0)->make_lane()->mark();  // where events were spare
      open_device(0)->make_lane()->mark();
    });
    EXPECT_THAT(message, ::testing::AllOf(HasSubstr("cuda:0"), HasSubstr(symbol.substr(0, 8)))) << symbol;
    sim_.fail("");
    copy_to_device(memory.data, bytes.data(), bytes.size());
  }
}

TEST_F(CopyTest, a_copy_is_called_over_only_when_it_is_also_where_the_question_failed) {
  const AllocatedMemory memory = device_allocator(0)(2 * kMiB);
  const std::shared_ptr<Device> device = open_device(0);
  const auto share = PinnedPool::process().join(device, 2 * kMiB);
  std::byte* const block = share->take();
  sim_.set("link", 20 * kMiB);
  for (const std::string call : {"cuEventQuery", "cuEventSynchronize", "cuStreamSynchronize"}) {
    const std::unique_ptr<Lane> lane = device->make_lane();
    sim_.fail(call + ":1:999");
    lane->to_device(reinterpret_cast<std::uintptr_t>(memory.data), block, 2 * kMiB);
    const Lane::Ticket ticket = lane->mark();
    if (call == "cuEventSynchronize") lane->wait(ticket);
    if (call == "cuStreamSynchronize") lane->drain();
    EXPECT_TRUE(lane->passed(ticket));
    EXPECT_EQ(sim_.counters().copies_queued, 0u) << call;
    EXPECT_THAT(message_of([&] { lane->check(); }), HasSubstr(call));
  }
  share->give_back(block);
}

TEST_F(CopyTest, in_a_context_that_can_not_be_entered_nothing_is_pinned_or_registered) {
  const std::shared_ptr<Device> device = open_device(0);
  std::vector<std::byte> memory(4096);
  sim_.fail("cuCtxPushCurrent_v2:1+:999");
  std::vector<std::string> reasons(4);
  EXPECT_FALSE(device->pin(memory.data(), memory.size(), reasons[0]));
  EXPECT_EQ(device->allocate_pinned(4096, reasons[1]), nullptr);
  EXPECT_FALSE(device->start_files(reasons[2]));
  EXPECT_EQ(device->register_for_files(0, 4096, reasons[3]), nullptr);
  EXPECT_THAT(reasons, ::testing::Each(HasSubstr("cuda:0 (Simulated Accelerator): cuCtxPushCurrent failed")));
}

TEST_F(CopyTest, a_lane_that_could_not_be_told_to_wait_is_told_again) {
  const std::shared_ptr<Device> device = open_device(0);
  Lanes lanes(device);
  lanes.wait_for(device->moment(nullptr));
  sim_.fail("cuStreamWaitEvent:1:999");
  EXPECT_THAT(message_of([&] { lanes.mine(); }), HasSubstr("cuStreamWaitEvent"));
  lanes.mine();
  EXPECT_EQ(sim_.calls("cuStreamWaitEvent"), 2u);
}

TEST_F(CopyTest, blocks_are_whole_pages_whatever_the_bound) {
  ::setenv("PENSTOCK_PINNED", "100000", 1);
  const AllocatedMemory memory = device_allocator(0)(200'000);
  const std::vector<std::byte> sent = testing::random_bytes(200'000);
  copy_to_device(memory.data, sent.data(), sent.size());
  EXPECT_TRUE(sim_.peek(reinterpret_cast<std::uintptr_t>(memory.data), sent.size()) == sent);
  EXPECT_EQ(sim_.counters().pinned_bytes_peak, 64 * kKiB);
}

class PoolTest : public ::testing::Test {
 protected:
  SimulatedDevices sim_;
  std::shared_ptr<Device> device_ = open_device(0);
  PinnedPool pool_{8 * kMiB};
};

TEST_F(PoolTest, blocks_are_kept_and_taken_again) {
  const auto share = pool_.join(device_, 2 * kMiB);
  std::byte* const first = share->take();
  share->give_back(first);
  EXPECT_EQ(share->take(), first);
  share->give_back(first);
  EXPECT_EQ(sim_.calls("cuMemHostRegister_v2"), 1);
  EXPECT_EQ(pool_.pinned_bytes(), 2 * kMiB);
  EXPECT_EQ(share->pinning(), "registered");
}

TEST_F(PoolTest, the_bound_holds_and_what_is_kept_makes_room_for_blocks_of_another_size) {
  {
    const auto share = pool_.join(device_, 2 * kMiB);
    std::vector<std::byte*> taken;
    while (std::byte* const block = share->take()) taken.push_back(block);
    EXPECT_EQ(taken.size(), 4);
    for (std::byte* block : taken) share->give_back(block);
  }
  const auto large = pool_.join(device_, 8 * kMiB);
  std::byte* const block = large->take();
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(large->take(), nullptr);
  EXPECT_EQ(pool_.pinned_bytes(), 8 * kMiB);
  EXPECT_EQ(pool_.peak_bytes(), 8 * kMiB);
  EXPECT_LE(sim_.counters().pinned_bytes_peak, 8 * kMiB);
  large->give_back(block);
  EXPECT_THAT(message_of([&] { pool_.join(device_, 16 * kMiB); }), HasSubstr("PENSTOCK_PINNED"));
}

TEST_F(PoolTest, two_shares_have_half_each_and_one_that_came_late_gets_its_part) {
  const auto first = pool_.join(device_, 2 * kMiB);
  std::vector<std::byte*> taken;
  while (std::byte* const block = first->take()) taken.push_back(block);
  ASSERT_EQ(taken.size(), 4);
  const auto second = pool_.join(device_, 2 * kMiB);
  EXPECT_EQ(second->take(), nullptr);  // nothing is free
  first->give_back(taken.back());
  taken.pop_back();
  EXPECT_EQ(first->take(), nullptr);  // it has more than its part
  std::byte* const late = second->take();
  EXPECT_NE(late, nullptr);
  second->give_back(late);
  for (std::byte* block : taken) first->give_back(block);
}

TEST_F(PoolTest, a_share_without_blocks_always_gets_one_in_the_end) {
  const auto first = pool_.join(device_, 8 * kMiB);
  const auto second = pool_.join(device_, 8 * kMiB);
  std::byte* const block = first->take();
  std::thread giver([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    first->give_back(block);
  });
  std::byte* other = nullptr;
  while ((other = second->take()) == nullptr) second->wait();
  giver.join();
  second->give_back(other);
}

}  // namespace
}  // namespace penstock
