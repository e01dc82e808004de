// Background saves from memory of (simulated) devices: what the file holds is what was there when save_async() was
// called, wherever the snapshot is, and the memory may change once staged() has returned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/bytes.h"
#include "base/tuning.h"
#include "penstock/penstock.h"
#include "testing/device_tensors.h"
#include "testing/errors.h"
#include "testing/files.h"
#include "testing/simulated_context.h"

namespace penstock {
namespace {

using testing::DeviceTensors;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using testing::SimulatedDevices;
using testing::TempDir;

class DeviceSnapshotTest : public ::testing::Test {
 protected:
  DeviceSnapshotTest() {
    std::filesystem::create_directory(directory_ / "host");
    tensors_.add("big", DType::kBF16, {5 * kMiB}, {}, 0);
    tensors_.add("odd", DType::kU8, {700'001}, {}, 0);
    tensors_.add("host", DType::kF32, {300'000}, {}, DeviceTensors::kHost);
    tensors_.add("host strided", DType::kF32, {30, 40}, {4, 120}, DeviceTensors::kHost);
    tensors_.add_numbers("strided", DType::kF32, {150, 200}, {4, 600}, 0);
    tensors_.add("backwards", DType::kI32, {100, 1001}, {-4 * 1001, -4}, 0);
    for (int i = 0; i < 50; ++i) tensors_.add("small." + std::to_string(i), DType::kI32, {i + 1}, {}, 0);
  }

  SaveJob start(const std::string& name, const SaveOptions& options, SaveAsyncOptions async_options) {
    Writer expected(directory_ / "host" / name, options);
    tensors_.add_from_host(expected);
    expected.commit();
    Writer writer(directory_ / name, options);
    tensors_.add_to(writer);
    return save_async(std::move(writer), std::move(async_options));
  }

  // Changes the tensors as soon as that is allowed.
  Stats save(const std::string& name, const SaveOptions& options, const SaveAsyncOptions& async_options) {
    SaveJob job = start(name, options, async_options);
    job.staged();
    tensors_.overwrite(sim_);
    Stats stats = job.wait();
    expect_same(name);
    tensors_.restore(sim_);
    return stats;
  }

  void expect_same(const std::string& name) const {
    EXPECT_TRUE(testing::read_file(directory_ / name) == testing::read_file(directory_ / "host" / name)) << name;
  }

  static SaveAsyncOptions on_device() {
    SaveAsyncOptions options;
    options.on_device = true;
    return options;
  }

  void expect_good_copies() const {
    EXPECT_EQ(sim_.counters().pageable_copies, 0u);
    EXPECT_LE(sim_.counters().pinned_bytes_peak, tuning::kPinnedBytes);
    EXPECT_EQ(sim_.counters().copies_queued, 0u);
  }

  SimulatedDevices sim_;
  TempDir directory_;
  DeviceTensors tensors_;
};

TEST_F(DeviceSnapshotTest, a_snapshot_on_the_host_has_the_bytes_of_the_call) {
  for (const std::string name : {"a.safetensors", "a.flashpack", "a.pt"}) {
    SaveOptions options;
    options.checksums = name != "a.pt";
    const Stats stats = save(name, options, {});
    EXPECT_THAT(stats.device, HasSubstr("cuda:0"));
    EXPECT_EQ(stats.pinning, "registered");
    options.dtype = DType::kF16;
    save(name, options, {});
  }
  EXPECT_EQ(sim_.counters().bytes_within_device, 0u);
  expect_good_copies();
}

TEST_F(DeviceSnapshotTest, a_snapshot_on_the_device_has_the_bytes_of_the_call) {
  const std::uint64_t before = sim_.counters().device_bytes;
  for (const std::string name : {"a.safetensors", "a.flashpack", "a.pt"}) {
    SaveOptions options;
    options.checksums = name != "a.pt";
    sim_.clear_counters();
    const Stats stats = save(name, options, on_device());
    EXPECT_THAT(stats.reason, HasSubstr("; the snapshot is on the device"));
    EXPECT_GT(sim_.counters().bytes_within_device, 10 * kMiB);
    EXPECT_EQ(sim_.counters().device_bytes, before);
    options.dtype = DType::kF16;
    save(name, options, on_device());
  }
  expect_good_copies();
}

TEST_F(DeviceSnapshotTest, a_snapshot_without_on_device_or_devices_says_nothing_of_it) {
  EXPECT_THAT(save("a.safetensors", {}, {}).reason, ::testing::Not(HasSubstr("snapshot")));
  Writer writer(directory_ / "b.safetensors");
  const std::vector<std::byte> bytes(100);
  writer.add("a", DType::kU8, {100}, bytes.data());
  EXPECT_THAT(save_async(std::move(writer), on_device()).wait().reason,
              HasSubstr("; the snapshot is on the host: no tensor lies on a device"));
}

TEST_F(DeviceSnapshotTest, without_a_snapshot_the_memory_is_read_until_it_is_written) {
  SaveAsyncOptions options;
  options.snapshot = false;
  SaveJob job = start("a.safetensors", {}, options);
  job.staged();
  tensors_.overwrite(sim_);
  job.wait();
  expect_same("a.safetensors");
}

TEST_F(DeviceSnapshotTest, where_memory_is_short_the_snapshot_is_on_the_host_and_says_why) {
  sim_.set("memory", sim_.counters().device_bytes + 16 * kMiB);
  const Stats stats = save("a.safetensors", {}, on_device());
  EXPECT_THAT(stats.reason, HasSubstr("; the snapshot is on the host: cuda:0"));
  EXPECT_THAT(stats.reason, HasSubstr("bytes free, and"));
  EXPECT_EQ(sim_.counters().bytes_within_device, 0u);
  expect_good_copies();
}

TEST_F(DeviceSnapshotTest, an_allocation_that_fails_all_the_same_is_no_error) {
  sim_.fail("cuMemAlloc_v2:1:2");
  EXPECT_THAT(save("a.safetensors", {}, on_device()).reason, HasSubstr("the snapshot is on the host: cuda:0"));
  sim_.fail("");
  SaveAsyncOptions options = on_device();
  options.allocate = [](std::uint64_t) -> AllocatedMemory { throw std::runtime_error("nothing left"); };
  EXPECT_THAT(save("a.safetensors", {}, options).reason, HasSubstr("the snapshot is on the host: nothing left"));
  options.allocate = device_allocator(1);
  EXPECT_THAT(save("a.safetensors", {}, options).reason, HasSubstr("the allocator gave no memory of cuda:0"));
}

TEST_F(DeviceSnapshotTest, an_allocator_of_the_callers_is_asked_on_its_thread_and_its_memory_let_go_of) {
  std::weak_ptr<void> given;
  SaveAsyncOptions options = on_device();
  options.allocate = [&, thread = std::this_thread::get_id()](std::uint64_t nbytes) {
    EXPECT_EQ(std::this_thread::get_id(), thread);
    AllocatedMemory memory = device_allocator(0)(nbytes);
    given = memory.owner;
    return memory;
  };
  SaveJob job = start("a.safetensors", {}, options);
  EXPECT_THAT(job.wait().reason, HasSubstr("on the device"));
  EXPECT_TRUE(given.expired());
  expect_same("a.safetensors");
}

TEST_F(DeviceSnapshotTest, tensors_of_two_devices_each_have_their_copy_there) {
  tensors_.add("other", DType::kF32, {800'000}, {}, 1);
  EXPECT_THAT(save("a.safetensors", {}, on_device()).reason, HasSubstr("; the snapshot is on the device"));
  save("b.safetensors", {}, {});
  expect_good_copies();
}

TEST_F(DeviceSnapshotTest, views_of_one_tensor_are_copied_once) {
  const AllocatedMemory memory = device_allocator(0)(4 * kMiB);
  const auto bytes = testing::random_bytes(4 * kMiB);
  copy_to_device(memory.data, bytes.data(), bytes.size());
  SaveOptions options;
  options.shared = SharedTensors::kDuplicate;
  Writer writer(directory_ / "a.safetensors", options);
  writer.add("all", DType::kU8, {4 * kMiB}, memory.data);
  writer.add("part", DType::kU8, {kMiB}, memory.data + 100);
  const std::vector<std::int64_t> strides{2};
  writer.add("every other", DType::kU8, {kMiB}, memory.data + kMiB, strides);
  sim_.clear_counters();
  save_async(std::move(writer), on_device()).wait();
  EXPECT_EQ(sim_.counters().bytes_within_device, 4 * kMiB);
  const Reader reader(directory_ / "a.safetensors");
  const auto loaded = [&](const char* name) { return reader.load_slice(name, {}); };
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), loaded("all").bytes.begin()));
  EXPECT_TRUE(std::equal(bytes.begin() + 100, bytes.begin() + 100 + kMiB, loaded("part").bytes.begin()));
  EXPECT_EQ(loaded("every other").bytes[777], bytes[kMiB + 2 * 777]);
}

TEST_F(DeviceSnapshotTest, work_that_was_queued_before_the_call_is_in_it_and_work_behind_staged_is_not) {
  const testing::SimulatedContext context(0);
  const auto old = testing::random_bytes(3 * kMiB, 5);
  const std::span pinned = context.allocate_pinned(old.size());
  const std::span other = context.allocate_pinned(old.size());
  std::copy(old.begin(), old.end(), pinned.begin());
  const AllocatedMemory memory = device_allocator(0)(old.size());
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data);
  const cuda::Stream stream = context.make_stream();
  for (const bool in_device : {false, true}) {
    const std::vector<std::byte> nothing(old.size());
    sim_.poke(address, nothing.data(), nothing.size());
    SaveOptions options;
    options.streams = {{0, stream}};
    Writer writer(directory_ / "a.safetensors", options);
    writer.add("a", DType::kU8, {static_cast<std::int64_t>(old.size())}, memory.data);
    sim_.set("delay", 20'000);
    ASSERT_EQ(context.api.copy_to_device(address, pinned.data(), pinned.size(), stream), 0);
    SaveJob job = save_async(std::move(writer), in_device ? on_device() : SaveAsyncOptions());
    job.staged();
    sim_.set("delay", 0);
    ASSERT_EQ(context.api.copy_to_device(address, other.data(), other.size(), stream), 0);
    job.wait();
    const Tensor tensor = Reader(directory_ / "a.safetensors").load_slice("a", {});
    EXPECT_TRUE(std::equal(old.begin(), old.end(), tensor.bytes.begin(), tensor.bytes.end())) << in_device;
    EXPECT_EQ(context.api.stream_synchronize(stream), 0);
  }
  EXPECT_EQ(context.api.stream_destroy(stream), 0);
  EXPECT_EQ(context.api.host_free(pinned.data()), 0);
  EXPECT_EQ(context.api.host_free(other.data()), 0);
}

TEST_F(DeviceSnapshotTest, one_that_is_cancelled_leaves_the_old_file_and_no_memory) {
  const std::uint64_t before = sim_.counters().device_bytes;
  testing::write_file(directory_ / "a.safetensors", "old");
  for (const bool in_device : {false, true}) {
    sim_.hold(true);
    SaveJob job = start("a.safetensors", {}, in_device ? on_device() : SaveAsyncOptions());
    job.cancel();
    sim_.hold(false);
    EXPECT_THAT(message_of([&] { job.wait(); }), HasSubstr("cancelled"));
    EXPECT_EQ(sim_.counters().device_bytes, before);
    EXPECT_EQ(testing::read_file(directory_ / "a.safetensors").size(), 3u);
  }
  EXPECT_THAT(directory_.names(), ElementsAre("a.safetensors", "host"));
}

}  // namespace
}  // namespace penstock
