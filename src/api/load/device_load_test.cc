// Loads to memory of (simulated) devices: the bytes are right, pinned memory stays within its bound, nothing is copied
// from pageable memory, and what fails says so in one line and leaves nothing behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/bytes.h"
#include "base/tuning.h"
#include "device/pinned_pool.h"
#include "penstock/device.h"
#include "penstock/penstock.h"
#include "testing/errors.h"
#include "testing/files.h"
#include "testing/simulated_context.h"
#include "testing/simulator.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::SimulatedDevices;
using testing::TempDir;

class DeviceLoadTest : public ::testing::Test {
 protected:
  DeviceLoadTest() {
    tensors_["big"] = testing::random_bytes(9 * kMiB, 1);
    tensors_["middle"] = testing::random_bytes(700 * kKiB, 2);
    tensors_["empty"] = {};
    tensors_["scalar"] = {std::byte{1}, std::byte{0x3f}};
    for (int i = 0; i < 300; ++i) {
      tensors_["small." + std::to_string(i)] = testing::random_bytes(2 * (i + 1), static_cast<std::uint32_t>(4 + i));
    }
    // Numbers that every type holds: conversions can be compared whole.
    for (auto& [name, bytes] : tensors_) {
      for (std::size_t i = 1; i < bytes.size(); i += 2) bytes[i] = std::byte{0x3f};
    }
  }

  void save(const std::string& name, SaveOptions options = {}) const {
    Writer writer(directory_ / name, std::move(options));
    for (const auto& [key, bytes] : tensors_) {
      const Shape shape = key == "scalar" ? Shape{} : Shape{static_cast<std::int64_t>(bytes.size() / 2)};
      writer.add(key, DType::kBF16, shape, bytes.data());
    }
    writer.commit();
  }

  static LoadOptions to_device(int device = 0) {
    LoadOptions options;
    options.allocate = device_allocator(device);
    return options;
  }

  std::vector<std::byte> bytes_of(const Tensor& tensor) const {
    return sim_.peek(reinterpret_cast<std::uintptr_t>(tensor.bytes.data()), tensor.bytes.size());
  }

  void expect_equal(std::span<const Tensor> loaded, std::size_t count) const {
    ASSERT_EQ(loaded.size(), count);
    for (const Tensor& tensor : loaded) {
      if (tensor.bytes.empty()) continue;
      EXPECT_TRUE(bytes_of(tensor) == tensors_.at(tensor.name)) << tensor.name;
    }
  }

  void expect_all(const LoadResult& result) const { expect_equal(result.tensors, tensors_.size()); }

  void expect_good_copies() const {
    EXPECT_EQ(sim_.counters().pageable_copies, 0);
    EXPECT_LE(sim_.counters().pinned_bytes_peak, tuning::kPinnedBytes);
  }

  SimulatedDevices sim_;
  TempDir directory_;
  std::map<std::string, std::vector<std::byte>> tensors_;
};

TEST_F(DeviceLoadTest, every_format_lands_whole_through_pinned_memory) {
  for (const std::string name : {"a.safetensors", "a.flashpack", "a.pt"}) {
    save(name);
    for (const CachePolicy cache :
         {CachePolicy::kAuto, CachePolicy::kCopy, CachePolicy::kDirect, CachePolicy::kBuffered}) {
      LoadOptions options = to_device();
      options.cache = cache;
      const LoadResult result = Reader(directory_ / name).load(options);
      expect_all(result);
      EXPECT_THAT(result.stats.device, HasSubstr("cuda:0"));
      EXPECT_EQ(result.stats.pinning, "registered");
      EXPECT_EQ(result.stats.bytes_mapped, 0);
    }
  }
  SaveOptions legacy;
  legacy.format = "torch-legacy";
  save("b.pt", legacy);
  expect_all(Reader(directory_ / "b.pt").load(to_device()));
  expect_good_copies();
}

TEST_F(DeviceLoadTest, the_device_is_the_one_whose_memory_it_is_and_no_other_gets_a_context) {
  save("a.safetensors");
  const LoadResult result = Reader(directory_ / "a.safetensors").load(to_device(1));
  expect_all(result);
  EXPECT_THAT(result.stats.device, HasSubstr("cuda:1"));
  EXPECT_EQ(device_of(result.tensors.front().bytes.data()), 1);
  EXPECT_EQ(sim_.counters().contexts_made[0], 0);
  EXPECT_EQ(device_of(&result), std::nullopt);
}

TEST_F(DeviceLoadTest, neighbours_in_the_file_are_one_copy_and_not_one_each) {
  save("a.safetensors");
  sim_.clear_counters();
  expect_all(Reader(directory_ / "a.safetensors").load(to_device()));
  EXPECT_LE(sim_.counters().copies_to_device, 60);  // blocks and their edges, of 304 tensors
}

TEST_F(DeviceLoadTest, what_is_converted_on_the_way_is_equal_to_a_load_on_the_host) {
  save("a.safetensors");
  const Reader reader(directory_ / "a.safetensors");
  for (const DType dtype : {DType::kF16, DType::kF32, DType::kF64, DType::kF8E4M3}) {
    LoadOptions options = to_device();
    options.dtype = dtype;
    const LoadResult loaded = reader.load(options);
    LoadOptions on_host;
    on_host.dtype = dtype;
    const LoadResult expected = reader.load(on_host);
    ASSERT_EQ(loaded.tensors.size(), expected.tensors.size());
    for (std::size_t i = 0; i < loaded.tensors.size(); ++i) {
      const std::vector<std::byte> bytes = bytes_of(loaded.tensors[i]);
      EXPECT_TRUE(
          std::equal(bytes.begin(), bytes.end(), expected.tensors[i].bytes.begin(), expected.tensors[i].bytes.end()))
          << loaded.tensors[i].name;
    }
  }
  expect_good_copies();
}

TEST_F(DeviceLoadTest, checksums_are_checked_as_bytes_pass) {
  SaveOptions with_checksums;
  with_checksums.checksums = true;
  save("a.safetensors", with_checksums);
  LoadOptions options = to_device();
  options.verify = Verify::kAny;
  expect_all(Reader(directory_ / "a.safetensors").load(options));
  testing::flip_bit(directory_ / "a.safetensors", std::filesystem::file_size(directory_ / "a.safetensors") - 5);
  EXPECT_THAT(message_of([&] { Reader(directory_ / "a.safetensors").load(options); }), HasSubstr("is corrupt"));
}

TEST_F(DeviceLoadTest, shards_and_selections_take_their_own_bytes_alone) {
  SaveOptions sharded;
  sharded.max_shard_size = 4 * kMiB;
  save("a.safetensors", sharded);
  LoadOptions options = to_device();
  options.select = [](const TensorInfo& info) { return info.name != "big"; };
  const std::uint64_t before = sim_.counters().device_bytes;
  const LoadResult result = Reader(directory_.path()).load(options);
  expect_equal(result.tensors, tensors_.size() - 1);
  EXPECT_LE(sim_.counters().device_bytes - before, 2 * kMiB);
}

TEST_F(DeviceLoadTest, streams_hand_out_batches_and_give_their_memory_back) {
  save("a.safetensors");
  LoadOptions options = to_device();
  options.max_buffer = 2 * kMiB;
  TensorStream stream = Reader(directory_ / "a.safetensors").stream(options);
  std::size_t count = 0;
  while (const std::optional<Tensor> tensor = stream.next()) {
    expect_equal({&*tensor, 1}, 1);
    ++count;
  }
  EXPECT_EQ(count, tensors_.size());
  EXPECT_THAT(stream.stats().device, HasSubstr("cuda:0"));
  expect_good_copies();
}

TEST_F(DeviceLoadTest, a_stream_that_can_not_wait_for_the_callers_work_ends_with_an_error) {
  save("a.safetensors");
  LoadOptions options = to_device();
  int batch = 0;
  options.allocate = [&, allocate = options.allocate](std::uint64_t nbytes) {
    // The first batch is being copied when the second, whose memory can't be waited for, comes.
    if (++batch == 2) {
      while (sim_.counters().copies_queued == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (batch == 3) sim_.hold(false);
    AllocatedMemory memory = allocate(nbytes);
    memory.stream = DeviceStream{0, nullptr};
    return memory;
  };
  options.select = [](const TensorInfo& info) { return info.name.starts_with("small."); };
  options.max_buffer = 64 * kKiB;
  options.io.threads = 1;
  sim_.hold(true);
  sim_.fail("cuStreamWaitEvent:2+:999");
  TensorStream stream = Reader(directory_ / "a.safetensors").stream(options);
  const std::string message = message_of([&] {
    while (stream.next()) {
    }
  });
  EXPECT_THAT(message, ::testing::AllOf(HasSubstr("cuda:0"), HasSubstr("cuStreamWaitEvent")));
  EXPECT_GE(batch, 3);
}

TEST_F(DeviceLoadTest, targets_of_two_devices_and_the_host_are_filled_in_one_load) {
  save("a.safetensors");
  const Allocator first = device_allocator(0);
  const Allocator second = device_allocator(1);
  std::vector<AllocatedMemory> memory;
  std::vector<std::vector<std::byte>> on_host;
  std::vector<Target> targets;
  std::size_t number = 0;
  for (const auto& [name, bytes] : tensors_) {
    if (bytes.empty()) continue;
    if (number % 3 == 2) {
      on_host.emplace_back(bytes.size());
      targets.push_back({name, on_host.back(), std::nullopt});
    } else {
      memory.push_back((number % 3 == 0 ? first : second)(bytes.size()));
      targets.push_back({name, {memory.back().data, bytes.size()}, std::nullopt});
    }
    ++number;
  }
  const Stats stats = Reader(directory_ / "a.safetensors").load_into(targets);
  EXPECT_THAT(stats.device, ::testing::AllOf(HasSubstr("cuda:0"), HasSubstr("cuda:1")));
  for (const Target& target : targets) {
    const auto& expected = tensors_.at(target.name);
    const bool is_device = device_of(target.bytes.data()).has_value();
    const auto found = is_device ? sim_.peek(reinterpret_cast<std::uintptr_t>(target.bytes.data()), target.bytes.size())
                                 : std::vector<std::byte>(target.bytes.begin(), target.bytes.end());
    EXPECT_TRUE(found == expected) << target.name;
  }
  expect_good_copies();
}

TEST_F(DeviceLoadTest, targets_that_touch_but_were_allocated_one_by_one_are_copied_one_by_one) {
  constexpr std::size_t kPage = 4 * kKiB;
  constexpr std::size_t kCount = 24;
  const std::vector<std::byte> bytes = testing::random_bytes(kCount * kPage);
  std::vector<AllocatedMemory> memory;
  for (std::size_t i = 0; i < kCount; ++i) memory.push_back(device_allocator(0)(kPage));
  std::sort(memory.begin(), memory.end(), [](const auto& a, const auto& b) { return a.data < b.data; });
  std::size_t touching = 0;
  for (std::size_t i = 1; i < kCount; ++i) touching += memory[i].data == memory[i - 1].data + kPage;
  ASSERT_GT(touching, 0u);
  SaveOptions saved;
  saved.checksums = true;
  Writer writer(directory_ / "a.safetensors", saved);
  std::vector<Target> targets;
  for (std::size_t i = 0; i < kCount; ++i) {
    const std::string name = "t" + std::to_string(100 + i);
    writer.add(name, DType::kU8, {kPage}, bytes.data() + i * kPage);
    targets.push_back({name, {memory[i].data, kPage}, std::nullopt});
  }
  writer.commit();
  for (const Verify verify : {Verify::kOff, Verify::kAny}) {
    LoadOptions options;
    options.verify = verify;
    Reader(directory_ / "a.safetensors").load_into(targets, options);
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::vector<std::byte> loaded = sim_.peek(reinterpret_cast<std::uintptr_t>(memory[i].data), kPage);
      EXPECT_TRUE(std::equal(loaded.begin(), loaded.end(), bytes.data() + i * kPage)) << i;
    }
  }
}

TEST_F(DeviceLoadTest, slices_and_their_conversions_land_on_the_device) {
  save("a.safetensors");
  const Reader reader(directory_ / "a.safetensors");
  const Slice rows{1000, 300'000};
  const Tensor slice = reader.load_slice("big", {&rows, 1}, to_device());
  const auto& whole = tensors_.at("big");
  EXPECT_TRUE(bytes_of(slice) == std::vector<std::byte>(whole.begin() + 2000, whole.begin() + 600'000));
}

TEST_F(DeviceLoadTest, parts_of_tensors_land_on_the_device) {
  constexpr std::int64_t kRows = 300;
  constexpr std::int64_t kColumns = 4000;
  std::vector<std::int32_t> values(static_cast<std::size_t>(kRows * kColumns));
  std::iota(values.begin(), values.end(), 0);
  Writer writer(directory_ / "parts.safetensors");
  writer.add("matrix", DType::kI32, {kRows, kColumns}, values.data());
  writer.commit();
  LoadOptions options = to_device();
  options.parts["matrix"] = {{{1, kRows, 3}}, {{1000, 2000}, {3000, 3001}}};
  std::vector<std::int32_t> expected;
  for (std::int64_t row = 1; row < kRows; row += 3) {
    const auto line = values.begin() + row * kColumns;
    expected.insert(expected.end(), line + 1000, line + 2000);
    expected.push_back(line[3000]);
  }
  for (const CachePolicy cache : {CachePolicy::kDirect, CachePolicy::kBuffered}) {
    options.cache = cache;
    const LoadResult result = Reader(directory_ / "parts.safetensors").load(options);
    ASSERT_EQ(result.tensors.size(), 1u);
    EXPECT_EQ(result.tensors[0].shape, (Shape{100, 1001}));
    const std::vector<std::byte> found = bytes_of(result.tensors[0]);
    EXPECT_TRUE(std::ranges::equal(found, std::as_bytes(std::span(expected))));
  }
}

TEST_F(DeviceLoadTest, memory_of_the_hosts_own_may_come_from_an_allocator_too) {
  save("a.safetensors");
  LoadOptions options;
  options.allocate = [](std::uint64_t nbytes) -> AllocatedMemory {
    auto memory = std::make_shared<std::vector<std::byte>>(nbytes);
    return {memory->data(), memory, std::nullopt};
  };
  const LoadResult result = Reader(directory_ / "a.safetensors").load(options);
  for (const Tensor& tensor : result.tensors) {
    const auto& expected = tensors_.at(tensor.name);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), tensor.bytes.begin(), tensor.bytes.end())) << tensor.name;
  }
  EXPECT_EQ(result.stats.device, "");
  options.cache = CachePolicy::kMap;
  EXPECT_THAT(message_of([&] { Reader(directory_ / "a.safetensors").load(options); }), HasSubstr("mmap"));
}

TEST_F(DeviceLoadTest, managed_memory_is_read_into_in_place) {
  save("a.safetensors");
  sim_.set("unified", 1);
  LoadOptions options = to_device(1);
  options.cache = CachePolicy::kDirect;
  const LoadResult result = Reader(directory_ / "a.safetensors").load(options);
  for (const Tensor& tensor : result.tensors) {
    const auto& expected = tensors_.at(tensor.name);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), tensor.bytes.begin(), tensor.bytes.end())) << tensor.name;
  }
  EXPECT_EQ(result.stats.landing, "in place");
  EXPECT_THAT(result.stats.reason, HasSubstr("share"));
  EXPECT_EQ(sim_.counters().copies_to_device, 0);
  EXPECT_GT(sim_.counters().managed_bytes, 9 * kMiB);
}

TEST_F(DeviceLoadTest, copies_wait_for_what_the_caller_has_queued) {
  save("a.safetensors");
  auto* const set =
      SimulatedDevices::symbol<int(cuda::Address, unsigned char, std::size_t, cuda::Stream)>("cuMemsetD8Async");
  const testing::SimulatedContext context;
  const cuda::Stream stream = context.make_stream();
  const Allocator plain = device_allocator(0);
  LoadOptions options;
  options.allocate = [&](std::uint64_t nbytes) {
    AllocatedMemory memory = plain(nbytes);
    // Somebody who had this memory before is not done with it yet.
    sim_.hold(true);
    EXPECT_EQ(set(reinterpret_cast<cuda::Address>(memory.data), 0xee, nbytes, stream), 0);
    memory.stream = DeviceStream{0, stream};
    std::thread([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      sim_.hold(false);
    }).detach();
    return memory;
  };
  expect_all(Reader(directory_ / "a.safetensors").load(options));
  EXPECT_EQ(context.api.stream_destroy(stream), 0);
}

TEST_F(DeviceLoadTest, every_call_that_fails_is_one_line_or_a_way_round_and_nothing_is_left) {
  save("a.safetensors");
  const Reader reader(directory_ / "a.safetensors");
  const Allocator allocate = device_allocator(0);
  for (const std::string symbol :
       {"cuMemAlloc_v2", "cuMemHostRegister_v2", "cuMemHostAlloc", "cuMemcpyHtoDAsync_v2", "cuStreamCreate",
        "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuCtxPushCurrent_v2",
        "cuPointerGetAttribute", "cuStreamWaitEvent"}) {
    for (const int nth : {1, 2, 5}) {
      sim_.fail(symbol + ":" + std::to_string(nth) + ":999");
      LoadOptions options;
      options.allocate = allocate;
      try {
        expect_all(reader.load(options));
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("cu")) << symbol;
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      }
      sim_.fail("");
      expect_all(reader.load(options));
      sim_.take_violations();  // a failed push has its own
    }
  }
}

TEST_F(DeviceLoadTest, a_copy_that_fails_late_is_an_error_that_names_the_device) {
  save("a.safetensors");
  const Reader reader(directory_ / "a.safetensors");
  LoadOptions options = to_device(1);
  sim_.fail("cuMemcpyHtoDAsync_v2:3:700:async");
  const std::string message = message_of([&] { reader.load(options); });
  EXPECT_THAT(message, HasSubstr("cuda:1"));
  EXPECT_THAT(message, HasSubstr("ILLEGAL_ADDRESS"));
}

TEST_F(DeviceLoadTest, without_a_way_to_pin_copies_are_pageable_and_the_statistics_say_why) {
  save("a.safetensors");
  sim_.set("register_limit", 1);
  LoadOptions options = to_device();
  LoadResult result = Reader(directory_ / "a.safetensors").load(options);
  expect_all(result);
  EXPECT_EQ(result.stats.pinning, "allocated");
}

TEST_F(DeviceLoadTest, without_any_pinned_memory_the_load_goes_on_and_says_so) {
  save("a.safetensors");
  sim_.set("pinned_limit", 1);
  const LoadResult result = Reader(directory_ / "a.safetensors").load(to_device());
  expect_all(result);
  EXPECT_THAT(result.stats.pinning, HasSubstr("unpinned: cuda:0"));
  EXPECT_GT(sim_.counters().pageable_copies, 0);
}

TEST_F(DeviceLoadTest, too_little_memory_on_the_device_is_an_error_that_names_it) {
  save("a.safetensors");
  sim_.set("memory", 4 * kMiB);
  EXPECT_THAT(message_of([&] { Reader(directory_ / "a.safetensors").load(to_device()); }),
              ::testing::AllOf(HasSubstr("cuda:0"), HasSubstr("cuMemAlloc"), HasSubstr("OUT_OF_MEMORY")));
}

TEST_F(DeviceLoadTest, a_device_that_is_not_there_is_named) {
  EXPECT_THAT(message_of([] { device_allocator(7); }), HasSubstr("there is no device 7: there are 2, from 0 on"));
  EXPECT_THAT(message_of([] { device_allocator(-1); }), HasSubstr("there is no device -1"));
}

TEST_F(DeviceLoadTest, two_loads_at_once_share_the_pinned_memory) {
  save("a.safetensors");
  sim_.set("link", 400'000'000);
  const auto load = [&](int device) {
    for (int round = 0; round < 3; ++round) expect_all(Reader(directory_ / "a.safetensors").load(to_device(device)));
  };
  std::thread other(load, 1);
  load(0);
  other.join();
  expect_good_copies();
}

TEST_F(DeviceLoadTest, a_cancelled_load_waits_for_its_copies) {
  save("a.safetensors");
  sim_.set("link", 20'000'000);
  LoadOptions options = to_device();
  options.progress = [](const Progress&) { return false; };
  EXPECT_THAT(message_of([&] { Reader(directory_ / "a.safetensors").load(options); }), HasSubstr("cancelled"));
  EXPECT_EQ(sim_.counters().copies_queued, 0);
}

TEST_F(DeviceLoadTest, after_a_fork_device_memory_is_refused_and_host_loads_work) {
  save("a.safetensors");
  const LoadResult result = Reader(directory_ / "a.safetensors").load(to_device());
  const pid_t child = ::fork();
  if (child == 0) {
    const Reader reader(directory_ / "a.safetensors");
    const std::span<std::byte> taken = result.tensors.front().bytes;
    const Target target{result.tensors.front().name, taken, std::nullopt};
    const bool refused = message_of([&] { reader.load_into({&target, 1}); }).find("fork") != std::string::npos;
    const bool no_new = message_of([&] { device_allocator(0); }).find("fork") != std::string::npos;
    LoadOptions small;  // so little that it needs no threads, which ThreadSanitizer has none of in a child
    small.select = [](const TensorInfo& info) { return info.name == "middle"; };
    const LoadResult on_host = reader.load(small);
    const std::span<const std::byte> found = on_host.tensors.front().bytes;
    const bool is_right = std::equal(found.begin(), found.end(), tensors_.at("middle").begin());
    ::_exit(refused && no_new && is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace penstock
