// Raw files from and to memory of (simulated) devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "penstock/penstock.h"
#include "testing/errors.h"
#include "testing/files.h"
#include "testing/simulated_context.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::SimulatedDevices;
using ::testing::StartsWith;
using testing::TempDir;

class DeviceAioTest : public ::testing::Test {
 protected:
  std::vector<std::byte> on_device() const {
    return sim_.peek(reinterpret_cast<std::uintptr_t>(memory_.data), bytes_.size());
  }

  SimulatedDevices sim_;
  TempDir directory_;
  const std::vector<std::byte> bytes_ = testing::random_bytes(5 * kMiB + 777);
  AllocatedMemory memory_ = device_allocator(0)(bytes_.size());
};

TEST_F(DeviceAioTest, a_stream_file_takes_memory_of_a_device_and_of_the_host_in_turn) {
  copy_to_device(memory_.data, bytes_.data(), bytes_.size());
  StreamOptions options;
  options.io.block_size = 256 * kKiB;
  StreamFile file(directory_ / "a", options);
  std::vector<std::byte> expected;
  const auto append = [&](bool from_device, std::size_t begin, std::size_t nbytes) {
    file.append((from_device ? memory_.data : bytes_.data()) + begin, nbytes);
    expected.insert(expected.end(), bytes_.begin() + begin, bytes_.begin() + begin + nbytes);
  };
  append(true, 0, 10);
  append(false, 5, kMiB);
  append(true, 100, 3 * kMiB);
  append(false, 0, 3);
  append(true, 0, bytes_.size());
  file.finish();
  EXPECT_TRUE(testing::read_file(directory_ / "a") == expected);
  EXPECT_EQ(sim_.counters().pageable_copies, 0u);
}

TEST_F(DeviceAioTest, a_stream_file_has_what_was_queued_before_it_was_appended) {
  const testing::SimulatedContext context(0);
  const std::span pinned = context.allocate_pinned(bytes_.size());
  std::copy(bytes_.begin(), bytes_.end(), pinned.begin());
  sim_.set("delay", 20'000);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data);
  ASSERT_EQ(context.api.copy_to_device(address, pinned.data(), pinned.size(), nullptr), 0);
  StreamFile file(directory_ / "a");
  file.append(memory_.data, bytes_.size());
  file.finish();
  EXPECT_TRUE(testing::read_file(directory_ / "a") == bytes_);
  EXPECT_EQ(context.api.host_free(pinned.data()), 0);
}

TEST_F(DeviceAioTest, a_stream_file_that_can_not_fetch_leaves_the_old_one) {
  testing::write_file(directory_ / "a", "old");
  {
    StreamFile file(directory_ / "a");
    sim_.fail("cuMemcpyDtoHAsync_v2:2:999");
    const std::string message = message_of([&] { file.append(memory_.data, bytes_.size()); });
    EXPECT_THAT(message, AllOf(StartsWith((directory_ / "a").string() + ": cuda:0"), HasSubstr("cuMemcpyDtoHAsync")));
    EXPECT_EQ(message_of([&] { file.finish(); }), message);
  }
  EXPECT_EQ(testing::read_file(directory_ / "a").size(), 3u);
  EXPECT_THAT(directory_.names(), ElementsAre("a"));
}

TEST_F(DeviceAioTest, raw_reads_and_writes_arrive) {
  copy_to_device(memory_.data, bytes_.data(), bytes_.size());
  AioHandle handle;
  const AioMemory whole{memory_.data, bytes_.size(), memory_.owner};
  handle.write(whole, {.path = directory_ / "a", .validate = true});
  EXPECT_TRUE(testing::read_file(directory_ / "a") == bytes_);
  auto other = testing::random_bytes(bytes_.size(), 9);
  testing::write_file(directory_ / "b", other);
  handle.start_read(whole, {.path = directory_ / "b"});
  EXPECT_EQ(handle.wait(), 1u);
  EXPECT_TRUE(on_device() == other);
  handle.start_write(whole, {.path = directory_ / "c"});
  handle.wait();
  EXPECT_TRUE(testing::read_file(directory_ / "c") == other);
  EXPECT_EQ(sim_.counters().pageable_copies, 0u);
}

TEST_F(DeviceAioTest, a_raw_write_that_can_not_fetch_makes_no_file) {
  AioHandle handle;
  sim_.fail("cuMemcpyDtoHAsync_v2:1:999");
  EXPECT_THAT(message_of([&] {
                handle.start_write({memory_.data, bytes_.size(), {}}, {.path = directory_ / "a"});
              }),
              StartsWith((directory_ / "a").string() + ": cuda:0"));
  EXPECT_THAT(directory_.names(), ::testing::IsEmpty());
  EXPECT_EQ(handle.pending(), 0u);
}

}  // namespace
}  // namespace penstock
