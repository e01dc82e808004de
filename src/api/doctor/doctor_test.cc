// The doctor: what it says is what a load does, and each trouble has its advice.
#include "penstock/doctor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <fstream>

#include "base/bytes.h"
#include "penstock/convert.h"
#include "penstock/error.h"
#include "penstock/measure.h"
#include "penstock/writer.h"
#include "testing/files.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TempDir;

constexpr std::uint64_t kTensorSize = 3 * kMiB;

void save_model(const std::filesystem::path& path, SaveOptions options = {}) {
  Writer writer(path, std::move(options));
  std::vector<std::vector<std::byte>> tensors;
  for (std::uint32_t i = 0; i < 4; ++i) tensors.push_back(testing::random_bytes(kTensorSize, i));
  for (std::uint32_t i = 0; i < 4; ++i) {
    writer.add("tensor." + std::to_string(i), DType::kF32, {kTensorSize / 4}, tensors[i].data());
  }
  writer.commit();
}

// A file whose second tensor of F32 starts at an odd offset.
void save_misaligned(const std::filesystem::path& path) {
  testing::write_safetensors(path,
                             R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                             R"("b":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}})",
                             testing::random_bytes(11));
}

std::vector<std::string> topics_of(const Diagnosis& diagnosis) {
  std::vector<std::string> topics;
  for (const Advice& advice : advise(diagnosis)) topics.push_back(advice.topic);
  return topics;
}

void expect_same(const Stats& expected, const Stats& actual) {
  EXPECT_EQ(expected.path, actual.path);
  EXPECT_EQ(expected.landing, actual.landing);
  EXPECT_EQ(expected.backend, actual.backend);
  EXPECT_EQ(expected.reason, actual.reason);
  EXPECT_EQ(expected.block_size, actual.block_size);
  EXPECT_EQ(expected.queue_depth, actual.queue_depth);
  EXPECT_EQ(expected.threads, actual.threads);
  EXPECT_EQ(expected.bytes, actual.bytes);
  EXPECT_EQ(expected.bytes_direct, actual.bytes_direct);
  EXPECT_EQ(expected.bytes_buffered, actual.bytes_buffered);
  EXPECT_EQ(expected.bytes_mapped, actual.bytes_mapped);
  EXPECT_EQ(expected.bytes_copied, actual.bytes_copied);
  EXPECT_EQ(expected.bytes_on_drive, actual.bytes_on_drive);
  EXPECT_EQ(expected.requests, actual.requests);
  EXPECT_EQ(expected.tensors, actual.tensors);
  EXPECT_EQ(expected.tensors_moved, actual.tensors_moved);
}

class DoctorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"PENSTOCK_BACKEND", "PENSTOCK_LANDING", "PENSTOCK_THREADS"}) ::unsetenv(name);
  }
  void TearDown() override { SetUp(); }

  // Asks the doctor, then loads into fresh memory, and compares.
  Diagnosis expect_truth(const std::filesystem::path& path, LoadOptions options = {}) {
    options.pool = MemoryPool::create();
    Diagnosis diagnosis = diagnose(path, options);
    expect_same(diagnosis.now.stats, Reader(path).load(options).stats);
    return diagnosis;
  }

  TempDir directory_;
  const std::filesystem::path path_ = directory_ / "model.safetensors";
};

TEST_F(DoctorTest, what_it_says_of_a_cold_file_is_what_a_load_does) {
  for (const std::string format : {"safetensors", "flashpack", "torch", "torch-legacy"}) {
    SCOPED_TRACE(format);
    SaveOptions options;
    options.format = format;
    const auto path = directory_ / format;
    save_model(path, options);
    drop_page_cache(path);
    const Diagnosis diagnosis = expect_truth(path);
    EXPECT_EQ(diagnosis.files.front().format, format);
    EXPECT_EQ(diagnosis.tensors, 4u);
    EXPECT_EQ(diagnosis.bytes, 4 * kTensorSize);
  }
}

TEST_F(DoctorTest, what_it_says_of_a_resident_file_is_what_a_load_does) {
  save_model(path_);
  testing::fill_page_cache(path_, 0, std::filesystem::file_size(path_));
  const Diagnosis diagnosis = expect_truth(path_);
  EXPECT_EQ(diagnosis.now.stats.path, "mapped");
  EXPECT_EQ(diagnosis.files.front().resident_bytes, diagnosis.files.front().span);
  ASSERT_TRUE(diagnosis.cold.has_value());
  EXPECT_EQ(diagnosis.cold->stats.path, "direct");
  EXPECT_EQ(diagnosis.cold->stats.bytes_direct, 4 * kTensorSize);
  EXPECT_EQ(diagnosis.cold->mapping, "the page cache holds nothing");
}

TEST_F(DoctorTest, what_it_says_of_a_partly_resident_file_is_what_a_load_does) {
  save_model(path_);
  drop_page_cache(path_);
  testing::fill_page_cache(path_, 0, kTensorSize);
  const Diagnosis diagnosis = expect_truth(path_);
  EXPECT_EQ(diagnosis.now.stats.path, "mixed");
  EXPECT_EQ(diagnosis.now.mapping, "the page cache holds less than half of it");
}

TEST_F(DoctorTest, what_it_says_of_a_mostly_resident_file_is_what_a_load_does) {
  save_model(path_);
  drop_page_cache(path_);
  testing::fill_page_cache(path_, 0, 3 * kTensorSize);
  const Diagnosis diagnosis = expect_truth(path_);
  EXPECT_EQ(diagnosis.now.stats.path, "mapped");
  EXPECT_THAT(diagnosis.now.mapping, HasSubstr("% of it: the rest is read into it, and nothing is copied"));
}

TEST_F(DoctorTest, what_it_says_of_every_policy_and_landing_is_what_a_load_does) {
  save_model(path_);
  for (const CachePolicy cache :
       {CachePolicy::kAuto, CachePolicy::kDirect, CachePolicy::kBuffered, CachePolicy::kMap}) {
    for (const Landing landing : {Landing::kAuto, Landing::kInPlace, Landing::kStaged}) {
      SCOPED_TRACE(static_cast<int>(cache) * 10 + static_cast<int>(landing));
      drop_page_cache(path_);
      LoadOptions options;
      options.cache = cache;
      options.landing = landing;
      options.io.backend = Backend::kThreads;
      expect_truth(path_, options);
    }
  }
}

TEST_F(DoctorTest, what_it_says_of_shards_is_what_a_load_does) {
  SaveOptions options;
  options.max_shard_size = 4 * kMiB;
  save_model(path_, options);
  const Diagnosis diagnosis = expect_truth(directory_.path());
  EXPECT_EQ(diagnosis.files.size(), 4u);
  // Each file twice, for each thread a ring, and what every process has open.
  EXPECT_GE(diagnosis.open_files_needed, 4u + 4u + diagnosis.now.stats.threads);
}

TEST_F(DoctorTest, a_small_file_is_read_by_the_calling_thread) {
  save_misaligned(path_);
  const Diagnosis diagnosis = expect_truth(path_);
  EXPECT_EQ(diagnosis.now.stats.backend, "inline");
  EXPECT_EQ(diagnosis.now.backend_reason, "so little is moved by the calling thread itself");
  EXPECT_FALSE(diagnosis.staging_registered);
}

TEST_F(DoctorTest, misaligned_tensors_are_found_and_conversion_aligns_them) {
  save_misaligned(path_);
  const Diagnosis diagnosis = diagnose(path_);
  EXPECT_EQ(diagnosis.tensors_misaligned, 1u);
  EXPECT_EQ(diagnosis.bytes_misaligned, 8u);
  EXPECT_EQ(diagnosis.now.mapping, "some tensors are misaligned in the file and have to be moved");
  EXPECT_THAT(topics_of(diagnosis), ElementsAre("misaligned"));
  EXPECT_THAT(diagnosis.advice.front().problem, HasSubstr("50% of the tensors (1, "));
  EXPECT_EQ(diagnosis.advice.front().remedy, "penstock convert " + path_.string() + " NEW.safetensors aligns them");
  convert(path_, directory_ / "new.safetensors", {});
  EXPECT_EQ(diagnose(directory_ / "new.safetensors").tensors_misaligned, 0u);
  EXPECT_EQ(diagnose(directory_ / "new.safetensors").now.stats.path, "mapped");
}

TEST_F(DoctorTest, a_file_in_memory_is_never_cold) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "there is no /dev/shm";
  const TempDir memory("/dev/shm");
  save_model(memory / "model.safetensors");
  const Diagnosis diagnosis = diagnose(memory / "model.safetensors");
  if (diagnosis.files.front().filesystem != "tmpfs") GTEST_SKIP() << "/dev/shm is no tmpfs here";
  EXPECT_TRUE(diagnosis.files.front().in_memory);
  EXPECT_TRUE(diagnosis.files.front().local);
  EXPECT_EQ(diagnosis.now.stats.path, "mapped");
  EXPECT_FALSE(diagnosis.cold.has_value());
  EXPECT_THAT(diagnosis.advice, IsEmpty());
}

TEST_F(DoctorTest, the_environment_is_told_and_its_harm_too) {
  save_model(path_);
  ::setenv("PENSTOCK_BACKEND", "threads", 1);
  ::setenv("PENSTOCK_LANDING", "staged", 1);
  const Diagnosis diagnosis = diagnose(path_);
  EXPECT_THAT(diagnosis.machine.environment, ElementsAre("PENSTOCK_BACKEND=threads", "PENSTOCK_LANDING=staged"));
  EXPECT_EQ(diagnosis.now.stats.backend, "threads");
  EXPECT_EQ(diagnosis.now.backend_reason, "PENSTOCK_BACKEND asks for threads");
  EXPECT_EQ(diagnosis.now.mapping, "a way to land was asked for");
  if (!diagnosis.machine.uring) GTEST_SKIP() << "there is no io_uring, so there is nothing to miss";
  EXPECT_THAT(topics_of(diagnosis), ElementsAre("io_uring", "landing"));
}

TEST_F(DoctorTest, a_selection_is_all_that_counts) {
  save_model(path_);
  LoadOptions options;
  options.select = [](const TensorInfo& tensor) { return tensor.name == "tensor.1"; };
  const Diagnosis diagnosis = expect_truth(path_, options);
  EXPECT_EQ(diagnosis.tensors, 1u);
  EXPECT_EQ(diagnosis.files.front().span, kTensorSize);
}

TEST_F(DoctorTest, the_read_ahead_is_what_the_drive_has) {
  save_model(path_);
  const FileDiagnosis file = diagnose(path_).files.front();
  if (!file.read_ahead) GTEST_SKIP() << "the drive can't be told";
  std::uint64_t kib = 0;
  ASSERT_TRUE(std::ifstream(file.read_ahead_setting) >> kib);
  EXPECT_EQ(*file.read_ahead, kib * kKiB);
}

TEST_F(DoctorTest, too_many_shards_for_the_limit_are_an_error_that_names_it) {
  SaveOptions options;
  options.max_shard_size = 4 * kMiB;
  save_model(path_, options);
  // Both ways once before there are no descriptors, which UBSan needs for every type that it has not met.
  EXPECT_EQ(diagnose(directory_.path()).files.size(), 4u);
  EXPECT_THROW(diagnose(directory_ / "missing"), Error);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit little{testing::open_descriptors(), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &little), 0);
  std::string message;
  try {
    diagnose(directory_.path());
  } catch (const Error& error) {
    message = error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(message, EndsWith("ulimit -n raises it)"));
}

// A healthy load of 1 GiB, to be made ill.
Diagnosis healthy() {
  Diagnosis diagnosis;
  FileDiagnosis file;
  file.path = "model/m.safetensors";
  file.size = kGiB;
  file.format = "safetensors";
  file.filesystem = "ext4";
  file.local = true;
  file.direct = true;
  file.extents = 8;
  diagnosis.files = {file};
  diagnosis.tensors = 100;
  diagnosis.bytes = kGiB;
  diagnosis.now.stats.path = "direct";
  diagnosis.now.stats.backend = "uring";
  diagnosis.now.uses_uring = true;
  diagnosis.now.may_stage = true;
  diagnosis.now.stats.bytes_direct = kGiB;
  diagnosis.now.stats.bytes_copied = kGiB;
  diagnosis.cold = diagnosis.now;
  diagnosis.staging_bytes = 32 * kMiB;
  diagnosis.staging_registered = true;
  diagnosis.open_files_needed = 10;
  diagnosis.machine.kernel = "6.12.0";
  diagnosis.machine.uring = true;
  diagnosis.machine.memory_available = 8 * kGiB;
  diagnosis.machine.locked_memory_limit = 64 * kMiB;
  diagnosis.machine.open_files_limit = 1024;
  diagnosis.machine.huge_pages = "madvise";
  return diagnosis;
}

Advice only_advice(const Diagnosis& diagnosis) {
  const std::vector<Advice> advice = advise(diagnosis);
  EXPECT_EQ(advice.size(), 1u);
  return advice.empty() ? Advice{} : advice.front();
}

TEST(Advice, there_is_none_for_the_healthy) {
  EXPECT_THAT(advise(healthy()), IsEmpty());
}

TEST(Advice, a_payload_beyond_the_memory_is_to_be_streamed) {
  Diagnosis ill = healthy();
  ill.bytes = 9 * kGiB;
  EXPECT_EQ(only_advice(ill).topic, "memory");
  EXPECT_EQ(only_advice(ill).problem,
            "the payload of 9.0 GiB exceeds the 8.0 GiB of memory that are available: a load is refused");
  ill.machine.memory_limited_by_cgroup = true;
  EXPECT_THAT(only_advice(ill).problem, HasSubstr("this process's cgroup leaves"));
  ill.now.mapped = true;
  EXPECT_THAT(advise(ill), IsEmpty());
}

TEST(Advice, a_limit_of_open_files_is_to_be_raised) {
  Diagnosis ill = healthy();
  ill.open_files_needed = 1500;
  EXPECT_EQ(only_advice(ill).topic, "open_files");
  EXPECT_EQ(only_advice(ill).remedy, "ulimit -n 2048");
}

TEST(Advice, a_filesystem_without_direct_reads_is_told_once) {
  Diagnosis ill = healthy();
  ill.files.front().direct = false;
  ill.files.front().direct_refusal = "open with O_DIRECT: Invalid argument";
  ill.files.push_back(ill.files.front());
  EXPECT_EQ(only_advice(ill).topic, "direct_io");
  EXPECT_THAT(only_advice(ill).problem, HasSubstr("ext4 refuses direct I/O (open with O_DIRECT: Invalid argument)"));
}

TEST(Advice, a_remote_filesystem_is_never_mapped) {
  Diagnosis ill = healthy();
  ill.files.front().local = false;
  ill.files.front().filesystem = "nfs4";
  EXPECT_EQ(only_advice(ill).topic, "remote");
  EXPECT_THAT(only_advice(ill).problem, HasSubstr("nfs4 is not known to keep its pages on this machine"));
}

Diagnosis without_uring(int error_number) {
  Diagnosis ill = healthy();
  ill.machine.uring = false;
  ill.machine.uring_error = error_number;
  ill.cold->stats.backend = "threads";
  ill.cold->uses_uring = false;
  ill.cold->uses_threads = true;
  return ill;
}

TEST(Advice, io_uring_that_the_administrator_disabled_names_the_setting) {
  Diagnosis ill = without_uring(EPERM);
  ill.machine.uring_disabled = 2;
  EXPECT_EQ(only_advice(ill).problem, "io_uring is disabled by kernel.io_uring_disabled=2, so threads are used");
  EXPECT_EQ(only_advice(ill).remedy, "sysctl kernel.io_uring_disabled=0, as root");
}

TEST(Advice, io_uring_that_a_filter_refuses_names_the_calls) {
  Diagnosis ill = without_uring(EPERM);
  ill.machine.uring_disabled = 0;
  ill.machine.seccomp = true;
  EXPECT_THAT(only_advice(ill).problem, HasSubstr("a seccomp filter refuses io_uring"));
  EXPECT_THAT(only_advice(ill).remedy, HasSubstr("io_uring_setup"));
}

TEST(Advice, a_kernel_without_io_uring_is_named) {
  Diagnosis ill = without_uring(ENOSYS);
  ill.machine.kernel = "4.19.0";
  EXPECT_THAT(only_advice(ill).problem, HasSubstr("Linux 4.19.0 has no io_uring"));
}

TEST(Advice, io_uring_does_not_matter_where_nothing_is_read_directly) {
  Diagnosis ill = without_uring(ENOSYS);
  ill.cold->stats.bytes_direct = 0;
  EXPECT_THAT(advise(ill), IsEmpty());
}

TEST(Advice, a_limit_of_locked_memory_is_to_be_raised) {
  Diagnosis ill = healthy();
  ill.staging_registered = false;
  ill.machine.locked_memory_limit = 64 * kKiB;
  EXPECT_THAT(only_advice(ill).problem, HasSubstr("RLIMIT_MEMLOCK is 64.0 KiB: the 32.0 MiB of staging blocks"));
  EXPECT_EQ(only_advice(ill).remedy, "ulimit -l 65536");
}

TEST(Advice, huge_pages_are_to_be_turned_on) {
  Diagnosis ill = healthy();
  ill.machine.huge_pages = "never";
  EXPECT_EQ(only_advice(ill).topic, "huge_pages");
}

TEST(Advice, scattered_tensors_and_slow_pickles_are_to_be_converted) {
  Diagnosis ill = healthy();
  ill.files.front().format = "torch";
  ill.tensors_scattered = 3;
  EXPECT_EQ(only_advice(ill).topic, "scattered");
  ill.tensors_scattered = 0;
  ill.open_seconds = 0.5;
  EXPECT_EQ(only_advice(ill).problem, "interpreting the pickle took 0.50 s, before every load");
  EXPECT_THAT(only_advice(ill).remedy, HasSubstr("penstock convert model/m.safetensors NEW.safetensors"));
}

TEST(Advice, a_short_read_ahead_matters_where_much_is_read_through_the_page_cache) {
  Diagnosis ill = healthy();
  ill.files.front().read_ahead = 128 * kKiB;
  ill.files.front().read_ahead_setting = "/sys/block/vda/queue/read_ahead_kb";
  ill.files.push_back(ill.files.front());  // is told once
  EXPECT_THAT(advise(ill), IsEmpty());     // what is read directly is not read ahead
  ill.cold->stats.bytes_buffered = kGiB;
  EXPECT_EQ(only_advice(ill).topic, "read_ahead");
  EXPECT_EQ(only_advice(ill).problem,
            "1.0 GiB are read through the page cache, and the kernel reads only 128.0 KiB ahead");
  EXPECT_EQ(only_advice(ill).remedy, "echo 8192 > /sys/block/vda/queue/read_ahead_kb, as root");
  for (FileDiagnosis& file : ill.files) file.read_ahead = 4 * kMiB;
  EXPECT_THAT(advise(ill), IsEmpty());
}

TEST(Advice, a_file_in_many_pieces_is_to_be_copied) {
  Diagnosis ill = healthy();
  ill.files.front().extents = 12000;
  EXPECT_EQ(only_advice(ill).problem, "m.safetensors lies in 12000 pieces of 87.4 KiB on average");
  ill.files.front().extents = 500;  // of 2 MiB: a request each
  EXPECT_THAT(advise(ill), IsEmpty());
}

}  // namespace
}  // namespace penstock
