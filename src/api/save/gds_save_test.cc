// Saves that a (simulated) device writes by itself with cuFile: the file is that of a save from the host, and whatever
// goes another way says why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <thread>

#include "base/bytes.h"
#include "penstock/penstock.h"
#include "testing/device_tensors.h"
#include "testing/errors.h"
#include "testing/files.h"
#include "testing/simulated_context.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using testing::DeviceTensors;
using ::testing::HasSubstr;
using testing::SimulatedDevices;
using testing::TempDir;

class GdsSaveTest : public ::testing::Test {
 protected:
  GdsSaveTest() {
    std::filesystem::create_directory(directory_ / "host");
    std::filesystem::create_directory(directory_ / "proc");
    testing::write_file(directory_ / "proc/modules", "");
    ::setenv("PENSTOCK_GDS_ROOT", directory_.path().c_str(), 1);
    tensors_.add("big", DType::kBF16, {5 * kMiB}, {}, 0);
    tensors_.add("odd", DType::kU8, {3'700'001}, {}, 0);
    tensors_.add("host", DType::kF32, {900'000}, {}, DeviceTensors::kHost);
    tensors_.add("small", DType::kI32, {77}, {}, 0);
  }
  ~GdsSaveTest() override { ::unsetenv("PENSTOCK_GDS_ROOT"); }

  static SaveOptions options() {
    SaveOptions options;
    options.gds = DirectStorage::kOn;
    return options;
  }

  // Saves from the devices, and the same from the host; the files are equal.
  Stats save(const std::string& name, const SaveOptions& options) {
    Writer expected(directory_ / "host" / name, options);
    tensors_.add_from_host(expected);
    expected.commit();
    sim_.clear_counters();
    Writer writer(directory_ / name, options);
    tensors_.add_to(writer);
    const Stats stats = writer.commit();
    EXPECT_TRUE(testing::read_file(directory_ / name) == testing::read_file(directory_ / "host" / name)) << name;
    EXPECT_EQ(sim_.counters().file_bytes_written, stats.bytes_gds);
    return stats;
  }

  SimulatedDevices sim_;
  TempDir directory_;
  DeviceTensors tensors_;
};

constexpr const char* kUsed = "used; buffers are not registered: the memory is the caller's";

TEST_F(GdsSaveTest, every_format_is_written_by_the_device_but_for_its_edges) {
  for (const std::string name : {"a.safetensors", "a.flashpack", "a.pt", "b.pt"}) {
    for (const Landing landing : {Landing::kStaged, Landing::kInPlace}) {
      SaveOptions with_landing = options();
      with_landing.landing = landing;
      if (name == "b.pt") with_landing.format = "torch-legacy";
      if (name == "a.pt") with_landing.torch.checksums = false;
      const Stats stats = save(name, with_landing);
      EXPECT_EQ(stats.gds, kUsed) << name;
      EXPECT_EQ(stats.path, "direct");
      EXPECT_GT(stats.bytes_gds, 13 * kMiB);
      EXPECT_EQ(sim_.counters().pageable_copies, 0u);
    }
  }
}

TEST_F(GdsSaveTest, short_writes_are_continued) {
  sim_.set("file_most_bytes", 100'000);
  const Stats stats = save("a.safetensors", options());
  EXPECT_EQ(stats.gds, kUsed);
  EXPECT_GT(stats.resumed, 50u);
}

TEST_F(GdsSaveTest, shards_are_written_by_it_too) {
  SaveOptions sharded = options();
  sharded.max_shard_size = 11 * kMiB;
  Writer expected(directory_ / "host" / "a.safetensors", sharded);
  tensors_.add_from_host(expected);
  expected.commit();
  Writer writer(directory_ / "a.safetensors", sharded);
  tensors_.add_to(writer);
  EXPECT_EQ(writer.commit().gds, kUsed);
  for (const auto& entry : std::filesystem::directory_iterator(directory_ / "host")) {
    EXPECT_TRUE(testing::read_file(entry.path()) == testing::read_file(directory_ / entry.path().filename().native()));
  }
}

TEST_F(GdsSaveTest, files_that_the_caller_lays_out_are_written_by_it_too) {
  std::vector<std::byte> contents[2];
  for (const bool from_device : {true, false}) {
    Writer writer(directory_ / "a.safetensors", options());
    from_device ? tensors_.add_to(writer) : tensors_.add_from_host(writer);
    const FileSetTensor big{"big", 4, 10 * kMiB};
    FileSet set(std::move(writer), {{directory_ / "one", "head", 10 * kMiB + 4, {big}}});
    set.write();
    set.publish_each();
    contents[from_device ? 1 : 0] = testing::read_file(directory_ / "one");
  }
  EXPECT_TRUE(contents[0] == contents[1]);
  EXPECT_GE(sim_.counters().file_bytes_written, 9 * kMiB);
  EXPECT_EQ(sim_.counters().file_handles, 0u);
}

TEST_F(GdsSaveTest, several_processes_may_write_one_file_with_it) {
  const auto make = [&](const std::filesystem::path& path) {
    Writer writer(path, options());
    tensors_.add_to(writer);
    return ParallelSave(std::move(writer));
  };
  ParallelSave first = make(directory_ / "a.safetensors");
  ParallelSave second = make(directory_ / "a.safetensors");
  second.join(first.create());
  first.write(0, 2);
  second.write(1, 2);
  const Stats stats = first.commit({});
  EXPECT_EQ(stats.gds, kUsed);
  Writer expected(directory_ / "host" / "a.safetensors", options());
  tensors_.add_from_host(expected);
  expected.commit();
  EXPECT_TRUE(testing::read_file(directory_ / "a.safetensors") ==
              testing::read_file(directory_ / "host" / "a.safetensors"));
}

TEST_F(GdsSaveTest, what_the_host_has_to_see_or_convert_passes_through_it) {
  SaveOptions with_checksums = options();
  with_checksums.checksums = true;
  EXPECT_THAT(save("a.safetensors", with_checksums).gds, HasSubstr("a.safetensors: checksums are taken on the host"));
  SaveOptions buffered = options();
  buffered.method = WriteMethod::kBuffered;
  EXPECT_THAT(save("a.safetensors", buffered).gds, HasSubstr("a.safetensors: no direct I/O"));
  SaveOptions off = options();
  off.gds = DirectStorage::kOff;
  EXPECT_EQ(save("a.safetensors", off).gds, "it is turned off");
  SaveOptions automatic = options();
  automatic.gds = DirectStorage::kAuto;
  EXPECT_THAT(save("a.safetensors", automatic).gds, HasSubstr("nvidia-fs is not loaded"));
  tensors_.add_numbers("strided", DType::kF32, {500, 500}, {4, 2000}, 0);
  EXPECT_THAT(save("a.safetensors", options()).gds,
              AllOf(HasSubstr(kUsed), HasSubstr("; not for all: "), HasSubstr("what is converted or strided")));
}

TEST_F(GdsSaveTest, a_write_or_a_file_that_is_refused_goes_through_staging) {
  for (const std::string nth : {"1", "3", "1+"}) {
    sim_.fail("cuFileWrite:" + nth + ":5010");
    EXPECT_THAT(save("a.safetensors", options()).gds,
                AllOf(HasSubstr("a.safetensors: cuda:0"), HasSubstr("cuFileWrite at offset"), HasSubstr("5010")));
    sim_.fail("");
  }
  sim_.fail("cuFileHandleRegister:1+:5008");
  const Stats stats = save("a.safetensors", options());
  EXPECT_THAT(stats.gds, HasSubstr("cuFileHandleRegister failed: error 5008"));
  EXPECT_EQ(stats.bytes_gds, 0u);
}

TEST_F(GdsSaveTest, a_cancelled_save_leaves_the_old_file_and_no_handle) {
  save("a.safetensors", options());
  const auto before = testing::read_file(directory_ / "a.safetensors");
  SaveOptions stopped = options();
  stopped.progress = [](const Progress&) { return false; };
  Writer writer(directory_ / "a.safetensors", stopped);
  tensors_.add_to(writer);
  EXPECT_THAT(testing::message_of([&] { writer.commit(); }), HasSubstr("cancelled"));
  EXPECT_TRUE(testing::read_file(directory_ / "a.safetensors") == before);
}

TEST_F(GdsSaveTest, bytes_are_those_after_the_work_that_the_caller_has_queued) {
  const testing::SimulatedContext context(0);
  const auto bytes = testing::random_bytes(12 * kMiB, 5);
  const std::span pinned = context.allocate_pinned(bytes.size());
  std::copy(bytes.begin(), bytes.end(), pinned.begin());
  const AllocatedMemory memory = device_allocator(0)(bytes.size());
  const cuda::Stream stream = context.make_stream();
  SaveOptions late = options();
  late.streams = {{0, stream}};
  late.io.threads = 4;  // else one thread waits for the first block, which has an edge to fetch, and then for nothing
  Writer writer(directory_ / "a.safetensors", late);
  writer.add("a", DType::kU8, {static_cast<std::int64_t>(bytes.size())}, memory.data);
  sim_.hold(true);
  ASSERT_EQ(
      context.api.copy_to_device(reinterpret_cast<std::uintptr_t>(memory.data), pinned.data(), pinned.size(), stream),
      0);
  std::thread release([this] {
    while (sim_.calls("cuFileHandleRegister") == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // enough for a write that did not wait
    EXPECT_EQ(sim_.calls("cuFileWrite"), 0u);
    sim_.hold(false);
  });
  EXPECT_EQ(writer.commit().gds, kUsed);
  release.join();
  const Tensor tensor = Reader(directory_ / "a.safetensors").load_slice("a", {});
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), tensor.bytes.begin(), tensor.bytes.end()));
  EXPECT_EQ(context.api.stream_destroy(stream), 0);
  EXPECT_EQ(context.api.host_free(pinned.data()), 0);
}

TEST_F(GdsSaveTest, background_saves_use_it_from_a_snapshot_on_the_device) {
  for (const bool on_device : {true, false}) {
    Writer writer(directory_ / "a.safetensors", options());
    tensors_.add_to(writer);
    SaveAsyncOptions async_options;
    async_options.on_device = on_device;
    const Stats stats = save_async(std::move(writer), async_options).wait();
    EXPECT_EQ(stats.gds, on_device ? kUsed : "a snapshot was copied to the host first");
    Writer expected(directory_ / "host" / "a.safetensors", options());
    tensors_.add_from_host(expected);
    expected.commit();
    EXPECT_TRUE(testing::read_file(directory_ / "a.safetensors") ==
                testing::read_file(directory_ / "host" / "a.safetensors"));
  }
}

}  // namespace
}  // namespace penstock
