// Loads that a (simulated) device reads by itself with cuFile: the bytes are right, whatever goes another way says why,
// and no handle or registered buffer is left.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <map>
#include <thread>

#include "base/bytes.h"
#include "base/tuning.h"
#include "penstock/measure.h"
#include "penstock/penstock.h"
#include "testing/errors.h"
#include "testing/files.h"
#include "testing/simulated_context.h"
#include "testing/simulator.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::SimulatedDevices;
using ::testing::StartsWith;
using testing::TempDir;

class GdsLoadTest : public ::testing::Test {
 protected:
  GdsLoadTest() {
    // A system that has all that it takes.
    make_file("proc/modules", "nvidia_fs 1 0\n");
    make_file("proc/driver/nvidia-fs/devcount", "1\n");
    make_file("dev/nvidia-fs0", "");
    ::setenv("PENSTOCK_GDS_ROOT", system_.path().c_str(), 1);
    ::unsetenv("PENSTOCK_GDS");
    add("big", 19 * kMiB + 250, 1);
    add("middle", 700 * kKiB + 6, 2);
    add("odd", 3 * kMiB + 2, 3);
    for (int i = 0; i < 40; ++i) add("small." + std::to_string(i), 2 * (i + 1), static_cast<std::uint32_t>(4 + i));
  }
  ~GdsLoadTest() override { ::unsetenv("PENSTOCK_GDS_ROOT"); }

  void make_file(const std::string& name, std::string_view text) {
    std::filesystem::create_directories((system_ / name).parent_path());
    testing::write_file(system_ / name, text);
  }

  // Numbers that every type holds, so that conversions can be compared.
  void add(const std::string& name, std::size_t nbytes, std::uint32_t seed) {
    std::vector<std::byte>& bytes = tensors_[name] = testing::random_bytes(nbytes, seed);
    for (std::size_t i = 1; i < bytes.size(); i += 2) bytes[i] = std::byte{0x3f};
  }

  std::filesystem::path save(const std::string& name, SaveOptions options = {}) const {
    Writer writer(directory_ / name, std::move(options));
    for (const auto& [key, bytes] : tensors_) {
      writer.add(key, DType::kBF16, {static_cast<std::int64_t>(bytes.size() / 2)}, bytes.data());
    }
    writer.commit();
    return directory_ / name;
  }

  static LoadOptions options(int device = 0) {
    LoadOptions options;
    options.allocate = device_allocator(device);
    options.cache = CachePolicy::kDirect;
    return options;
  }

  void expect_equal(const Tensor& tensor) const {
    const auto bytes = sim_.peek(reinterpret_cast<std::uintptr_t>(tensor.bytes.data()), tensor.bytes.size());
    EXPECT_TRUE(bytes == tensors_.at(tensor.name)) << tensor.name;
  }
  void expect_all(const LoadResult& result) const {
    EXPECT_EQ(result.tensors.size(), tensors_.size());
    for (const Tensor& tensor : result.tensors) expect_equal(tensor);
  }

  // Loads a file whose bytes are right, and gives the statistics.
  Stats load(const std::filesystem::path& path, const LoadOptions& options) const {
    const LoadResult result = Reader(path).load(options);
    expect_all(result);
    return result.stats;
  }

  // A load whose bytes are right and that cuFile had no part in.
  std::string reason_of(const std::filesystem::path& path, const LoadOptions& options) {
    sim_.clear_counters();
    const Stats stats = load(path, options);
    EXPECT_EQ(stats.bytes_gds, 0);
    EXPECT_EQ(sim_.counters().file_bytes_read, 0);
    return stats.gds;
  }

  SimulatedDevices sim_;
  TempDir directory_;
  TempDir system_;
  std::map<std::string, std::vector<std::byte>> tensors_;
};

TEST_F(GdsLoadTest, every_format_is_read_by_the_device_but_for_its_edges) {
  SaveOptions legacy;
  legacy.format = "torch-legacy";
  for (const auto& path : {save("a.safetensors"), save("a.flashpack"), save("a.pt"), save("b.pt", legacy)}) {
    sim_.clear_counters();
    const Stats stats = load(path, options());
    EXPECT_EQ(stats.gds, "used") << path;
    EXPECT_EQ(stats.path, "direct");
    EXPECT_EQ(stats.landing, "in place");
    EXPECT_GT(stats.bytes_gds, 21 * kMiB);
    EXPECT_EQ(sim_.counters().file_bytes_read, stats.bytes_gds);
    EXPECT_EQ(stats.bytes_direct, stats.bytes);
    EXPECT_EQ(stats.bytes_copied, stats.bytes - stats.bytes_gds);
    EXPECT_EQ(sim_.counters().bytes_to_device, stats.bytes_copied);
    EXPECT_EQ(sim_.counters().pageable_copies, 0);
  }
}

TEST_F(GdsLoadTest, nothing_of_it_enters_the_page_cache) {
  const auto path = save("a.safetensors");
  drop_page_cache(path);
  load(path, options());
  EXPECT_LE(Reader(path).resident_bytes(), 64 * kKiB);  // what shares pages with the header
}

TEST_F(GdsLoadTest, blocks_and_threads_are_cufiles_own_unless_the_caller_chose) {
  add("huge", 96 * kMiB, 99);
  const auto path = save("a.safetensors");
  sim_.clear_counters();
  const Stats stats = load(path, options());
  EXPECT_EQ(stats.threads, tuning::kGdsThreads);
  EXPECT_LE(sim_.counters().file_reads, stats.bytes_gds / (4 * kMiB) + 8);
  LoadOptions chosen = options();
  chosen.io.block_size = 256 * kKiB;
  chosen.io.threads = 2;
  sim_.clear_counters();
  const Stats with_choice = load(path, chosen);
  EXPECT_EQ(with_choice.threads, 2);
  EXPECT_GE(sim_.counters().file_reads, with_choice.bytes_gds / (256 * kKiB));
}

TEST_F(GdsLoadTest, selections_shards_and_slices_are_right) {
  SaveOptions sharded;
  sharded.max_shard_size = 8 * kMiB;
  save("m.safetensors", sharded);
  LoadOptions some = options(1);
  some.select = [](const TensorInfo& info) { return info.name != "middle" && info.name != "small.7"; };
  const LoadResult result = Reader(directory_.path()).load(some);
  EXPECT_EQ(result.tensors.size(), tensors_.size() - 2);
  for (const Tensor& tensor : result.tensors) expect_equal(tensor);
  EXPECT_EQ(result.stats.gds, "used");
  EXPECT_THAT(result.stats.device, HasSubstr("cuda:1"));
  const Slice rows{12345, 4'000'000};
  const Tensor slice = Reader(directory_.path()).load_slice("big", {&rows, 1}, options());
  const auto& whole = tensors_.at("big");
  EXPECT_TRUE(sim_.peek(reinterpret_cast<std::uintptr_t>(slice.bytes.data()), slice.bytes.size()) ==
              std::vector<std::byte>(whole.begin() + 2 * 12345, whole.begin() + 2 * 4'000'000));
}

TEST_F(GdsLoadTest, streams_use_one_handle_for_all_their_batches) {
  const auto path = save("a.safetensors");
  const std::uint64_t before = sim_.calls("cuFileHandleRegister");
  LoadOptions small = options();
  small.max_buffer = 2 * kMiB;
  std::size_t count = 0;
  {
    TensorStream stream = Reader(path).stream(small);
    while (const std::optional<Tensor> tensor = stream.next()) {
      expect_equal(*tensor);
      ++count;
    }
    EXPECT_EQ(stream.stats().gds, "used");
    EXPECT_GT(stream.stats().bytes_gds, 19 * kMiB);
  }
  EXPECT_EQ(count, tensors_.size());
  EXPECT_EQ(sim_.calls("cuFileHandleRegister") - before, 1);
  TensorStream given_up = Reader(path).stream(small);
  given_up.next();
}

TEST_F(GdsLoadTest, targets_of_the_caller_are_filled_though_nothing_registers_them) {
  const auto path = save("a.safetensors");
  const Allocator allocate = device_allocator(1);
  std::vector<AllocatedMemory> memory;
  std::vector<Target> targets;
  for (const auto& [name, bytes] : tensors_) {
    memory.push_back(allocate(bytes.size() + 62));
    targets.push_back({name, {memory.back().data + 62, bytes.size()}, std::nullopt});
  }
  LoadOptions into = options();
  into.allocate = {};
  const std::uint64_t before = sim_.calls("cuFileBufRegister");
  const Stats stats = Reader(path).load_into(targets, into);
  for (const Target& target : targets) {
    EXPECT_TRUE(sim_.peek(reinterpret_cast<std::uintptr_t>(target.bytes.data()), target.bytes.size()) ==
                tensors_.at(target.name));
  }
  EXPECT_EQ(stats.gds, "used; buffers are not registered: the memory is the caller's");
  EXPECT_GT(stats.bytes_gds, 21 * kMiB);
  EXPECT_EQ(sim_.calls("cuFileBufRegister"), before);
}

TEST_F(GdsLoadTest, short_reads_are_continued) {
  const auto path = save("a.safetensors");
  sim_.set("file_most_bytes", 100'000);
  const Stats stats = load(path, options());
  EXPECT_EQ(stats.gds, "used");
  EXPECT_GT(stats.resumed, 100);
}

TEST_F(GdsLoadTest, every_part_of_the_rule_that_fails_is_the_reason_and_cufile_is_not_touched) {
  const auto path = save("a.safetensors");
  const std::uint64_t before = sim_.calls("cuFileDriverOpen") + sim_.calls("cuFileHandleRegister");
  make_file("proc/driver/nvidia-fs/devcount", "0\n");
  EXPECT_THAT(reason_of(path, options()), HasSubstr("nvidia-fs has no devices"));
  make_file("proc/driver/nvidia-fs/devcount", "1\n");
  std::filesystem::remove(system_ / "dev/nvidia-fs0");
  EXPECT_THAT(reason_of(path, options()), HasSubstr("/dev/nvidia-fs0 is missing"));
  std::filesystem::remove_all(system_ / "proc/driver");
  EXPECT_THAT(reason_of(path, options()), HasSubstr("nvidia-fs is not loaded"));
  std::filesystem::remove(system_ / "proc/modules");
  EXPECT_THAT(reason_of(path, options()), HasSubstr("/proc/modules is missing"));
  LoadOptions insisting = options();
  insisting.gds = DirectStorage::kOn;
  EXPECT_THAT(reason_of(path, insisting), HasSubstr("/proc/modules is missing"));
  EXPECT_EQ(sim_.calls("cuFileDriverOpen") + sim_.calls("cuFileHandleRegister"), before);
}

TEST_F(GdsLoadTest, who_insists_needs_no_nvidia_fs) {
  const auto path = save("a.safetensors");
  std::filesystem::remove_all(system_ / "proc/driver");
  LoadOptions insisting = options();
  insisting.gds = DirectStorage::kOn;
  EXPECT_EQ(load(path, insisting).gds, "used");
  ::setenv("PENSTOCK_GDS", "on", 1);
  EXPECT_EQ(load(path, options()).gds, "used");
  insisting.gds = DirectStorage::kOff;
  EXPECT_EQ(reason_of(path, insisting), "it is turned off");
  ::setenv("PENSTOCK_GDS", "off", 1);
  EXPECT_EQ(reason_of(path, options()), "PENSTOCK_GDS turns it off");
  ::setenv("PENSTOCK_GDS", "maybe", 1);
  EXPECT_THAT(message_of([&] { Reader(path).load(options()); }), HasSubstr("PENSTOCK_GDS=\"maybe\": expected one of"));
  ::unsetenv("PENSTOCK_GDS");
}

TEST_F(GdsLoadTest, what_the_host_has_to_see_or_convert_passes_through_it) {
  const auto path = save("a.pt");
  LoadOptions verifying = options();
  verifying.verify = Verify::kAny;
  EXPECT_EQ(reason_of(path, verifying), "checksums are taken on the host (verify)");
  LoadOptions converting = options();
  converting.dtype = DType::kF32;
  const LoadResult result = Reader(path).load(converting);
  EXPECT_THAT(result.stats.gds, HasSubstr("a.pt: what is converted passes through the host"));
  EXPECT_EQ(result.stats.bytes_gds, 0);
}

TEST_F(GdsLoadTest, what_the_page_cache_holds_is_copied_from_there) {
  const auto path = save("a.safetensors");
  const std::uint64_t size = std::filesystem::file_size(path);
  testing::fill_page_cache(path, 0, size);
  LoadOptions copying = options();
  copying.cache = CachePolicy::kAuto;
  EXPECT_THAT(reason_of(path, copying), HasSubstr("its bytes come from the page cache"));
  drop_page_cache(path);
  testing::fill_page_cache(path, 0, 9 * kMiB);
  const Stats stats = load(path, copying);
  EXPECT_EQ(stats.gds, "used");
  EXPECT_GT(stats.bytes_gds, 10 * kMiB);
  EXPECT_GT(stats.bytes_buffered, 6 * kMiB);
}

TEST_F(GdsLoadTest, files_with_few_whole_pages_say_so) {
  tensors_.clear();
  for (int i = 0; i < 40; ++i) add("t." + std::to_string(i), 6 * kKiB + 2, static_cast<std::uint32_t>(i));
  const auto path = save("a.safetensors");
  LoadOptions every_other = options();
  every_other.select = [](const TensorInfo& info) { return info.name.size() % 2 == 0; };
  const LoadResult result = Reader(path).load(every_other);
  EXPECT_EQ(result.stats.gds, "no tensors cover enough whole pages of their file");
  EXPECT_EQ(result.stats.landing, "staged");
}

TEST_F(GdsLoadTest, a_file_or_buffer_that_cufile_refuses_goes_another_way_and_the_code_is_told) {
  const auto path = save("a.safetensors");
  sim_.fail("cuFileBufRegister:1+:5016");
  EXPECT_THAT(load(path, options()).gds,
              AllOf(StartsWith("used; buffers are not registered: cuda:0"), HasSubstr("error 5016 (more memory")));
  sim_.fail("");
  sim_.fail("cuFileHandleRegister:1+:5008");
  EXPECT_THAT(reason_of(path, options()),
              AllOf(HasSubstr("a.safetensors: cuda:0"), HasSubstr("cuFileHandleRegister failed: error 5008")));
  sim_.fail("");
  EXPECT_EQ(load(path, options()).gds, "used");
}

TEST_F(GdsLoadTest, a_read_that_fails_is_made_through_staging) {
  const auto path = save("a.safetensors");
  for (const std::string error : {"5", "5010"}) {  // of the system, and of cuFile
    for (const std::string nth : {"1", "2", "1+", "4+"}) {
      sim_.fail("cuFileRead:" + nth + ":" + error);
      const Stats stats = load(path, options());
      EXPECT_THAT(stats.gds, AllOf(HasSubstr("a.safetensors: cuda:0"), HasSubstr("cuFileRead at offset"))) << nth;
      EXPECT_THAT(stats.gds, HasSubstr(error == "5" ? "Input/output error" : "error 5010 (nvidia-fs failed)"));
      EXPECT_EQ(stats.bytes_direct, stats.bytes);
      sim_.fail("");
      if (nth == "1+") {
        EXPECT_EQ(stats.bytes_gds, 0);
      }
    }
  }
}

TEST_F(GdsLoadTest, calls_of_the_driver_that_fail_leave_no_handle_and_no_buffer) {
  const auto path = save("a.safetensors");
  const Reader reader(path);
  for (const std::string symbol : {"cuMemAlloc_v2", "cuCtxPushCurrent_v2", "cuEventSynchronize", "cuEventRecord",
                                   "cuMemcpyHtoDAsync_v2", "cuFileBufRegister", "cuFileHandleRegister", "cuFileRead"}) {
    for (const int nth : {1, 2, 6}) {
      const LoadOptions once = options();
      sim_.fail(symbol + ":" + std::to_string(nth) + ":999");
      try {
        expect_all(reader.load(once));
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("cu")) << symbol;
      }
      sim_.fail("");
      sim_.take_violations();  // a failed push has its own
      EXPECT_THAT(sim_.leaks(SIM_FILES), ::testing::IsEmpty()) << symbol << " " << nth;
      expect_all(reader.load(once));
    }
  }
}

TEST_F(GdsLoadTest, a_file_that_shrinks_is_the_error_of_every_load) {
  const auto path = save("a.safetensors");
  const Reader reader(path);
  std::filesystem::resize_file(path, 5 * kMiB);
  const Error error = testing::error_of([&] { reader.load(options()); });
  EXPECT_EQ(error.kind(), ErrorKind::kChanged);
  EXPECT_THAT(error.what(), HasSubstr("a.safetensors"));
}

TEST_F(GdsLoadTest, reads_wait_for_what_the_caller_has_queued) {
  const auto path = save("a.safetensors");
  auto* const set =
      SimulatedDevices::symbol<int(cuda::Address, unsigned char, std::size_t, cuda::Stream)>("cuMemsetD8Async");
  const testing::SimulatedContext context;
  const cuda::Stream stream = context.make_stream();
  const Allocator plain = device_allocator(0);
  std::thread release;
  LoadOptions late = options();
  late.allocate = [&](std::uint64_t nbytes) {
    AllocatedMemory memory = plain(nbytes);
    sim_.hold(true);
    EXPECT_EQ(set(reinterpret_cast<cuda::Address>(memory.data), 0xee, nbytes, stream), 0);
    memory.stream = DeviceStream{0, stream};
    release = std::thread([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      sim_.hold(false);
    });
    return memory;
  };
  EXPECT_EQ(load(path, late).gds, "used");
  release.join();
  EXPECT_EQ(context.api.stream_destroy(stream), 0);
}

TEST_F(GdsLoadTest, a_cancelled_load_leaves_nothing) {
  const auto path = save("a.safetensors");
  sim_.set("link", 20'000'000);
  LoadOptions cancelled = options();
  cancelled.progress = [](const Progress&) { return false; };
  EXPECT_THAT(message_of([&] { Reader(path).load(cancelled); }), HasSubstr("cancelled"));
}

TEST_F(GdsLoadTest, two_loads_of_one_reader_at_once_have_handles_of_their_own) {
  const Reader reader(save("a.safetensors"));
  const auto load = [&](int device) {
    for (int round = 0; round < 3; ++round) {
      const LoadResult result = reader.load(options(device));
      expect_all(result);
      EXPECT_EQ(result.stats.gds, "used");
    }
  };
  std::thread other(load, 1);
  load(0);
  other.join();
}

TEST_F(GdsLoadTest, small_loads_need_no_threads) {
  tensors_.clear();
  add("only", 2 * kMiB, 1);
  const Stats stats = load(save("a.safetensors"), options());
  EXPECT_EQ(stats.gds, "used");
  EXPECT_EQ(stats.threads, 0);
}

TEST_F(GdsLoadTest, loads_to_the_host_know_nothing_of_it) {
  const LoadResult result = Reader(save("a.safetensors")).load();
  EXPECT_EQ(result.stats.gds, "");
}

TEST_F(GdsLoadTest, without_the_library_or_its_driver_the_reason_is_theirs) {
  const auto path = save("a.safetensors");
  if (sim_.calls("cuFileDriverOpen") > 0) GTEST_SKIP() << "cuFile is open in this process: run this test alone";
  const int before = ::open("/dev/null", O_RDONLY);
  ASSERT_EQ(::dup2(before, 0), 0);
  ::close(before);
  sim_.fail("cuFileDriverOpen:1:5004");
  EXPECT_EQ(reason_of(path, options()), "cuFileDriverOpen failed: error 5004 (nvidia-fs is of another version)");
  sim_.fail("");
  sim_.set("file_closes_stdin", 1);
  EXPECT_EQ(load(path, options()).gds, "used");
  EXPECT_EQ(::fcntl(0, F_GETFD), 0);
  EXPECT_EQ(load(path, options()).gds, "used");
  EXPECT_EQ(sim_.calls("cuFileDriverOpen"), 2);  // the second time it was opened, and it stays so
}

}  // namespace
}  // namespace penstock
