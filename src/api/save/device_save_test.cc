// Saves from memory of (simulated) devices: the file is, byte for byte, the one that the same tensors give from memory
// of the host, whatever the format, the type and the strides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

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
using testing::message_of;
using testing::SimulatedDevices;
using testing::TempDir;

class DeviceSaveTest : public ::testing::Test {
 protected:
  DeviceSaveTest() { std::filesystem::create_directory(directory_ / "host"); }

  // Saves from the devices, and the same from the host; the files are equal.
  Stats save(const DeviceTensors& tensors, const std::string& name, const SaveOptions& options = {}) {
    Writer expected(directory_ / "host" / name, options);
    tensors.add_from_host(expected);
    expected.commit();
    Writer writer(directory_ / name, options);
    tensors.add_to(writer);
    EXPECT_EQ(writer.nbytes(), tensors.nbytes(options.dtype));
    Stats stats = writer.commit();
    expect_same(name);
    return stats;
  }

  void expect_same(const std::string& name) const {
    EXPECT_TRUE(testing::read_file(directory_ / name) == testing::read_file(directory_ / "host" / name)) << name;
  }

  void expect_good_copies() const {
    EXPECT_EQ(sim_.counters().pageable_copies, 0u);
    EXPECT_LE(sim_.counters().pinned_bytes_peak, tuning::kPinnedBytes);
    EXPECT_EQ(sim_.counters().copies_queued, 0u);
  }

  SimulatedDevices sim_;
  TempDir directory_;
};

// Large and small ones, a scalar, an empty one, and neighbours of the host.
DeviceTensors mixed(int device = 0) {
  DeviceTensors tensors;
  tensors.add("big", DType::kBF16, {5 * kMiB}, {}, device);
  tensors.add("odd", DType::kU8, {700'001}, {}, device);
  tensors.add("host", DType::kF32, {300'000}, {}, DeviceTensors::kHost);
  tensors.add("empty", DType::kF32, {0, 5}, {}, device);
  tensors.add("scalar", DType::kF64, {}, {}, device);
  for (int i = 0; i < 100; ++i) {
    tensors.add("small." + std::to_string(i), DType::kI32, {i + 1}, {}, i % 7 == 0 ? DeviceTensors::kHost : device);
  }
  return tensors;
}

TEST_F(DeviceSaveTest, every_format_has_the_bytes_of_a_save_from_the_host) {
  const DeviceTensors tensors = mixed();
  for (const std::string name : {"a.safetensors", "a.flashpack", "a.pt", "b.pt"}) {
    for (const WriteMethod method : {WriteMethod::kDirect, WriteMethod::kBuffered}) {
      SaveOptions options;
      options.method = method;
      if (name == "b.pt") options.format = "torch-legacy";
      const Stats stats = save(tensors, name, options);
      EXPECT_THAT(stats.device, HasSubstr("cuda:0"));
      EXPECT_EQ(stats.pinning, "registered");
      EXPECT_EQ(stats.tensors, 105u);
    }
  }
  expect_good_copies();
}

TEST_F(DeviceSaveTest, checksums_are_those_of_the_bytes) {
  const DeviceTensors tensors = mixed();
  SaveOptions options;
  options.checksums = true;
  for (const std::string name : {"a.safetensors", "a.flashpack"}) {
    save(tensors, name, options);
    const VerifyReport report = verify(directory_ / name);
    EXPECT_TRUE(report.ok);
    EXPECT_TRUE(report.had_checksums);
  }
  save(tensors, "a.pt");
  EXPECT_TRUE(verify(directory_ / "a.pt").ok);
  expect_good_copies();
}

TEST_F(DeviceSaveTest, shards_and_their_index_appear) {
  const DeviceTensors tensors = mixed();
  SaveOptions options;
  options.max_shard_size = 4 * kMiB;
  Writer writer(directory_ / "a.safetensors", options);
  tensors.add_to(writer);
  writer.commit();
  Writer expected(directory_ / "host" / "a.safetensors", options);
  tensors.add_from_host(expected);
  expected.commit();
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ / "host")) {
    expect_same(entry.path().filename());
    ++count;
  }
  EXPECT_EQ(count, 3u);
  expect_good_copies();
}

TEST_F(DeviceSaveTest, a_small_file_works) {
  DeviceTensors tensors;
  tensors.add("a", DType::kF32, {10}, {}, 0);
  tensors.add("b", DType::kU8, {3}, {}, 0);
  const Stats stats = save(tensors, "a.safetensors");
  EXPECT_EQ(stats.backend, "inline");
  save(tensors, "a.pt");
  expect_good_copies();
}

TEST_F(DeviceSaveTest, conversions_are_those_of_the_host) {
  DeviceTensors tensors;
  tensors.add_numbers("floats", DType::kF32, {1'000'003}, {}, 0);
  tensors.add_numbers("halves", DType::kF16, {2, 300'001}, {}, 0);
  tensors.add_numbers("transposed", DType::kF32, {300, 500}, {4, 4 * 300}, 0);
  tensors.add("integers", DType::kI64, {1000}, {}, 0);
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64, DType::kF8E4M3}) {
    SaveOptions options;
    options.dtype = dtype;
    save(tensors, "a.safetensors", options);
    options.checksums = true;
    save(tensors, "a.flashpack", options);
  }
  expect_good_copies();
}

TEST_F(DeviceSaveTest, strided_tensors_are_put_in_order) {
  sim_.set("delay", 0);  // of many copies
  DeviceTensors tensors;
  tensors.add("transposed", DType::kF32, {300, 400}, {4, 4 * 300}, 0);
  tensors.add("column", DType::kF64, {3000, 1}, {8 * 1000, 8}, 0);
  tensors.add("columns", DType::kI16, {5000, 3}, {2 * 100, 2}, 0);
  tensors.add("far rows", DType::kU8, {20, 1000}, {100'000, 1}, 0);
  tensors.add("every other", DType::kF16, {1'000'001}, {4}, 0);
  tensors.add("backwards", DType::kI32, {100, 1001}, {-4 * 1001, -4}, 0);
  tensors.add("mixed signs", DType::kI32, {50, 40, 30}, {-4 * 1200, 4, 4 * 40}, 0);
  tensors.add("expanded", DType::kF32, {300, 5, 7}, {0, 4, 0}, 0);
  tensors.add("permuted", DType::kF32, {64, 3, 7, 50}, {4 * 21, 4, 12, 4 * 21 * 64}, 0);
  tensors.add("overlapping windows", DType::kF32, {5000, 10}, {4, 4}, 0);
  for (const bool checksums : {false, true}) {
    SaveOptions options;
    options.checksums = checksums;
    options.shared = SharedTensors::kDuplicate;
    save(tensors, "a.safetensors", options);
    options.io.block_size = 64 * kKiB;
    save(tensors, "b.safetensors", options);
  }
  expect_good_copies();
}

TEST_F(DeviceSaveTest, a_large_strided_tensor_needs_no_more_than_the_pinned_memory) {
  sim_.set("delay", 0);
  DeviceTensors tensors;
  tensors.add("transposed", DType::kF64, {1100, 1100}, {8, 8 * 1100}, 0);
  save(tensors, "a.safetensors");
  expect_good_copies();
}

TEST_F(DeviceSaveTest, two_devices_and_the_host_are_in_one_file) {
  DeviceTensors tensors = mixed(0);
  tensors.add("other", DType::kF32, {800'000}, {}, 1);
  tensors.add("other strided", DType::kF32, {300, 300}, {4, 1200}, 1);
  SaveOptions options;
  options.checksums = true;
  const Stats stats = save(tensors, "a.safetensors", options);
  EXPECT_THAT(stats.device, HasSubstr("cuda:0"));
  EXPECT_THAT(stats.device, HasSubstr(", cuda:1"));
  expect_good_copies();
}

TEST_F(DeviceSaveTest, tensors_over_the_same_memory_of_a_device_are_found) {
  const AllocatedMemory memory = device_allocator(0)(2 * kMiB);
  const auto save_two = [&](std::uint64_t skew, SharedTensors shared) {
    SaveOptions options;
    options.shared = shared;
    Writer writer(directory_ / "a.safetensors", options);
    writer.add("a", DType::kU8, {kMiB}, memory.data);
    writer.add("b", DType::kU8, {kMiB}, memory.data + skew);
    writer.commit();
  };
  EXPECT_THAT(message_of([&] { save_two(0, SharedTensors::kRefuse); }), HasSubstr("\"a\" and \"b\" share memory"));
  EXPECT_THAT(message_of([&] { save_two(100, SharedTensors::kDeduplicate); }), HasSubstr("partly share memory"));
  save_two(kMiB, SharedTensors::kRefuse);
  save_two(0, SharedTensors::kDeduplicate);
  EXPECT_EQ(Reader(directory_ / "a.safetensors").metadata().at("b"), "a");
}

TEST_F(DeviceSaveTest, bytes_are_those_after_the_work_that_the_caller_has_queued) {
  const testing::SimulatedContext context(0);
  const auto bytes = testing::random_bytes(3 * kMiB, 5);
  const std::span pinned = context.allocate_pinned(bytes.size());
  std::copy(bytes.begin(), bytes.end(), pinned.begin());
  const AllocatedMemory memory = device_allocator(0)(bytes.size());
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data);
  sim_.set("delay", 20'000);
  for (const bool own_stream : {true, false}) {
    const std::vector<std::byte> nothing(bytes.size());
    sim_.poke(address, nothing.data(), nothing.size());
    SaveOptions options;
    const cuda::Stream stream = own_stream ? context.make_stream() : nullptr;
    if (own_stream) options.streams = {{0, stream}};
    Writer writer(directory_ / "a.safetensors", options);
    writer.add("a", DType::kU8, {static_cast<std::int64_t>(bytes.size())}, memory.data);
    ASSERT_EQ(context.api.copy_to_device(address, pinned.data(), pinned.size(), stream), 0);
    writer.commit();
    const Tensor tensor = Reader(directory_ / "a.safetensors").load_slice("a", {});
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), tensor.bytes.begin(), tensor.bytes.end())) << own_stream;
    EXPECT_EQ(own_stream ? context.api.stream_destroy(stream) : 0, 0);
  }
  EXPECT_EQ(context.api.host_free(pinned.data()), 0);
}

TEST_F(DeviceSaveTest, memory_that_host_and_device_share_is_read_in_place_after_the_callers_stream) {
  sim_.set("unified", 1);
  const testing::SimulatedContext context(0);
  const auto bytes = testing::random_bytes(3 * kMiB, 5);
  const std::span pinned = context.allocate_pinned(bytes.size());
  std::copy(bytes.begin(), bytes.end(), pinned.begin());
  cuda::Address address = 0;
  ASSERT_EQ(context.api.allocate_managed(&address, bytes.size(), cuda::kAttachGlobal), 0);
  auto* const memory = reinterpret_cast<std::byte*>(address);
  const cuda::Stream stream = context.make_stream();
  sim_.set("delay", 20'000);
  for (const bool background : {false, true}) {
    std::fill_n(memory, bytes.size(), std::byte{0});
    SaveOptions options;
    options.streams = {{0, stream}};
    Writer writer(directory_ / "a.safetensors", options);
    writer.add("a", DType::kU8, {static_cast<std::int64_t>(bytes.size())}, memory);
    ASSERT_EQ(context.api.copy_to_device(address, pinned.data(), pinned.size(), stream), 0);
    background ? save_async(std::move(writer)).wait() : writer.commit();
    const Tensor tensor = Reader(directory_ / "a.safetensors").load_slice("a", {});
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), tensor.bytes.begin(), tensor.bytes.end())) << background;
  }
  EXPECT_EQ(sim_.counters().copies_to_host, 0u);
  EXPECT_EQ(context.api.stream_destroy(stream), 0);
  EXPECT_EQ(context.api.free(address), 0);
  EXPECT_EQ(context.api.host_free(pinned.data()), 0);
}

TEST_F(DeviceSaveTest, a_save_of_host_memory_asks_nothing_of_the_device) {
  const auto bytes = testing::random_bytes(5 * kMiB);
  device_allocator(0)(1);
  sim_.clear_counters();
  const std::uint64_t streams = sim_.calls("cuStreamCreate");
  Writer writer(directory_ / "a.safetensors");
  writer.add("a", DType::kU8, {5 * kMiB}, bytes.data());
  const Stats stats = writer.commit();
  EXPECT_EQ(stats.device, "");
  EXPECT_EQ(stats.pinning, "");
  EXPECT_EQ(sim_.calls("cuStreamCreate"), streams);
}

TEST_F(DeviceSaveTest, where_nothing_can_be_pinned_the_reason_is_said) {
  sim_.fail("cuMemHostRegister_v2:1+:304,cuMemHostAlloc:1+:2");
  DeviceTensors tensors;
  tensors.add("a", DType::kU8, {3 * kMiB}, {}, 0);
  SaveOptions options;
  options.io.block_size = 512 * kKiB;  // of which no test before this has kept any
  const Stats stats = save(tensors, "a.safetensors", options);
  EXPECT_THAT(stats.pinning, HasSubstr("unpinned: cuda:0"));
  EXPECT_THAT(stats.pinning, HasSubstr("cuMemHostRegister"));
}

TEST_F(DeviceSaveTest, several_processes_write_one_file) {
  DeviceTensors tensors = mixed();
  tensors.add_numbers("strided", DType::kF32, {200, 300}, {4, 800}, 0);
  for (const std::string name : {"a.safetensors", "a.pt"}) {
    for (const auto dtype : {std::optional<DType>(), std::optional<DType>(DType::kF16)}) {
      SaveOptions options;
      options.checksums = name == "a.safetensors";
      options.dtype = dtype;
      const auto make = [&](const std::filesystem::path& path) {
        Writer writer(path, options);
        tensors.add_to(writer);
        return ParallelSave(std::move(writer));
      };
      ParallelSave first = make(directory_ / name);
      ParallelSave second = make(directory_ / name);
      second.join(first.create());
      auto sums = first.write(0, 2);
      const auto others = second.write(1, 2);
      sums.insert(sums.end(), others.begin(), others.end());
      const Stats stats = first.commit(sums);
      EXPECT_THAT(stats.device, HasSubstr("cuda:0"));
      EXPECT_EQ(stats.device.find(','), std::string::npos);
      EXPECT_EQ(stats.pinning, "registered");
      Writer expected(directory_ / "host" / name, options);
      tensors.add_from_host(expected);
      expected.commit();
      expect_same(name);
    }
  }
  EXPECT_THAT(directory_.names(), ElementsAre("a.pt", "a.safetensors", "host"));
  expect_good_copies();
}

}  // namespace
}  // namespace penstock
