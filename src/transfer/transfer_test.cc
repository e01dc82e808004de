// Reads and writes over every backend, with faults: the bytes are right, or there is an error that says what is wrong.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "penstock/error.h"
#include "testing/fault_engine.h"
#include "testing/files.h"
#include "testing/limits.h"
#include "transfer/load.h"
#include "transfer/write.h"

namespace penstock {
namespace {

using testing::Faults;
using testing::TempDir;

constexpr std::uint64_t kSize = 3 * kMiB + 777;

class TransferTest : public ::testing::TestWithParam<testing::NamedFactory> {
 protected:
  Settings settings(const Faults& faults = {}) const {
    return {testing::with_faults(GetParam().make, faults), 64 * kKiB, 8, 2};
  }

  std::vector<std::byte> read(const Faults& faults, const ReadPolicy& policy) {
    const auto file = std::make_shared<const File>(File::open(directory_ / "file"));
    const auto arena = pool_->allocate(kSize);
    // Two segments with a hole, the second of them not congruent.
    const auto base = reinterpret_cast<std::uintptr_t>(arena->data());
    FileWants wants{file, {{0, kMiB, base, 0}, {kMiB + 100, kSize - kMiB - 100, base + kMiB + 100, 1}}};
    auto batch = std::make_shared<ReadBatch>();
    batch->tasks.push_back(plan_file(wants, policy, 64 * kKiB));
    Crew crew(settings(faults), pool_);
    start_reading(crew, batch);
    const Stopwatch watch;
    wait_with_progress(*batch, {}, kSize, watch);
    check_unchanged(batch->tasks);
    std::vector<std::byte> out(arena->data(), arena->data() + kSize);
    std::fill(out.begin() + kMiB, out.begin() + kMiB + 100, std::byte{0});
    return out;
  }

  std::vector<WritePart> parts_of(const std::vector<std::byte>& content) {
    // A produced part between two from memory.
    return {{0, 1000, {content.data(), {}}},
            {1000,
             kMiB,
             {nullptr,
              [&content](std::uint64_t offset, std::span<std::byte> bytes) {
                std::memcpy(bytes.data(), content.data() + 1000 + offset, bytes.size());
              }}},
            {1000 + kMiB, kSize - 1000 - kMiB, {content.data() + 1000 + kMiB, {}}}};
  }

  void write(const std::vector<std::byte>& content, const Faults& faults, WriteMethod method) {
    NewFile file = NewFile::create(directory_ / "file");
    const WriteRoute route = choose_route(file, method, landing_);
    file.reserve(align_up(kSize, route.alignment));
    const auto batch = plan_write(file, route, parts_of(content), 64 * kKiB);
    Crew crew(settings(faults), pool_);
    start_writing(crew, batch);
    const Stopwatch watch;
    wait_with_progress(*batch, {}, kSize, watch);
    file.finish(kSize, false);
    file.publish();
  }

  TempDir directory_;
  Landing landing_ = Landing::kAuto;
  std::shared_ptr<HostPool> pool_ = host_pool(MemoryPool::create());
};

const Faults kRough{.short_transfer = 0.3, .interrupted = 0.1, .try_again = 0.05, .held_back = 0.3};

TEST_P(TransferTest, reads_land_right_however_rough_the_way) {
  auto content = testing::random_bytes(kSize);
  testing::write_file(directory_ / "file", content);
  std::fill(content.begin() + kMiB, content.begin() + kMiB + 100, std::byte{0});
  for (const CachePolicy cache : {CachePolicy::kAuto, CachePolicy::kDirect, CachePolicy::kBuffered}) {
    for (const LandingWay landing : {LandingWay::kStaged, LandingWay::kInPlace, LandingWay::kByPage}) {
      EXPECT_TRUE(read({}, {cache, landing, false}) == content);
      EXPECT_TRUE(read(kRough, {cache, landing, true}) == content);
    }
  }
}

TEST_P(TransferTest, writes_arrive_right_however_rough_the_way) {
  const auto content = testing::random_bytes(kSize);
  for (const WriteMethod method :
       {WriteMethod::kAuto, WriteMethod::kDirect, WriteMethod::kUncached, WriteMethod::kBuffered}) {
    for (const Landing landing : {Landing::kAuto, Landing::kInPlace, Landing::kStaged}) {
      landing_ = landing;
      write(content, {}, method);
      EXPECT_TRUE(testing::read_file(directory_ / "file") == content);
      write(content, kRough, method);
      EXPECT_TRUE(testing::read_file(directory_ / "file") == content);
    }
  }
}

TEST_P(TransferTest, a_failed_read_names_file_place_and_cause) {
  testing::write_file(directory_ / "file", testing::random_bytes(kSize));
  if (!File::open(directory_ / "file").direct().fd)
    GTEST_SKIP() << "the filesystem of " << directory_.path() << " refuses direct I/O";
  try {
    read({.fail_at = 5, .error_number = EIO}, {CachePolicy::kDirect, LandingWay::kStaged, false});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_EQ(error.error_number(), EIO);
    const std::string message = error.what();
    EXPECT_EQ(message.find((directory_ / "file").string() + ": read of 65536 bytes at offset "), 0u) << message;
    EXPECT_NE(message.find("failed: Input/output error"), std::string::npos) << message;
  }
}

TEST_P(TransferTest, a_full_disk_while_writing_leaves_the_old_file_and_nothing_else) {
  testing::write_file(directory_ / "file", "old");
  const auto content = testing::random_bytes(kSize);
  for (std::int64_t request = 0; request < 20; request += 6) {
    try {
      write(content, {.fail_at = request, .error_number = ENOSPC}, WriteMethod::kAuto);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kNoSpace);
      EXPECT_NE(std::string(error.what()).find("No space left on device"), std::string::npos);
    }
    EXPECT_EQ(testing::read_file(directory_ / "file").size(), 3u);
    EXPECT_EQ(directory_.names(), std::vector<std::string>{"file"});
  }
}

TEST_P(TransferTest, an_engine_that_breaks_down_is_an_error_and_not_a_hang) {
  testing::write_file(directory_ / "file", testing::random_bytes(kSize));
  if (!File::open(directory_ / "file").direct().fd) GTEST_SKIP() << "no direct I/O on " << directory_.path();
  try {
    read({.break_at = 4}, {CachePolicy::kDirect, LandingWay::kStaged, false});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_NE(std::string(error.what()).find("backend failed: Bad file descriptor"), std::string::npos);
  }
}

TEST_P(TransferTest, an_error_of_a_producer_reaches_the_caller) {
  NewFile file = NewFile::create(directory_ / "file");
  const WriteRoute route = choose_route(file, WriteMethod::kAuto);
  const WritePart part{
      0, kSize, {nullptr, [](std::uint64_t, std::span<std::byte>) { throw std::runtime_error("no more"); }}};
  const auto batch = plan_write(file, route, std::span(&part, 1), 64 * kKiB);
  Crew crew(settings(), pool_);
  start_writing(crew, batch);
  const Stopwatch watch;
  EXPECT_THROW(wait_with_progress(*batch, {}, kSize, watch), std::runtime_error);
}

TEST_P(TransferTest, a_progress_function_can_stop_it) {
  testing::write_file(directory_ / "file", testing::random_bytes(kSize));
  const auto file = std::make_shared<const File>(File::open(directory_ / "file"));
  const auto arena = pool_->allocate(kSize);
  auto batch = std::make_shared<ReadBatch>();
  batch->tasks.push_back(plan_file({file, {{0, kSize, reinterpret_cast<std::uintptr_t>(arena->data())}}},
                                   {CachePolicy::kDirect, LandingWay::kStaged, false}, 64 * kKiB));
  Crew crew(settings({.delay_microseconds = 20'000}), pool_);
  start_reading(crew, batch);
  const Stopwatch watch;
  int calls = 0;
  try {
    wait_with_progress(
        *batch, [&](const Progress&) { return ++calls < 2; }, kSize, watch);
    // A filesystem without direct I/O needs no engine, so nothing slows it down.
    EXPECT_FALSE(static_cast<bool>(file->direct().fd));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCancelled);
    EXPECT_EQ(calls, 2);
    EXPECT_LT(batch->bytes_done(), kSize);
  }
}

TEST_P(TransferTest, holes_between_parts_are_zero_however_rough_the_way) {
  auto content = testing::random_bytes(kSize);
  std::vector<WritePart> parts;
  std::fill(content.begin(), content.end() - 1, std::byte{0});
  for (const std::uint64_t offset : {std::uint64_t{5}, 200 * kKiB + 1, 2 * kMiB, kSize - 10}) {
    const std::uint64_t nbytes = offset == 2 * kMiB ? 300 * kKiB : 7;
    std::fill_n(content.begin() + static_cast<std::ptrdiff_t>(offset), nbytes, std::byte{0xAB});
    parts.push_back({offset, nbytes, {content.data() + offset, {}}});
  }
  content.back() = std::byte{0};
  add_zero_parts(parts, kSize);
  ASSERT_EQ(parts.size(), 9u);
  std::uint64_t covered = 0;
  for (const WritePart& part : parts) covered += part.nbytes;
  EXPECT_EQ(covered, kSize);
  for (const WriteMethod method : {WriteMethod::kAuto, WriteMethod::kBuffered}) {
    NewFile file = NewFile::create(directory_ / "file");
    const WriteRoute route = choose_route(file, method, Landing::kInPlace);
    const auto batch = plan_write(file, route, parts, 64 * kKiB);
    Crew crew(settings(kRough), pool_);
    start_writing(crew, batch);
    const Stopwatch watch;
    wait_with_progress(*batch, {}, kSize, watch);
    file.finish(kSize, false);
    file.publish();
    EXPECT_TRUE(testing::read_file(directory_ / "file") == content);
  }
}

TEST_P(TransferTest, a_crew_that_gets_no_thread_says_so) {
  const auto content = testing::random_bytes(kSize);
  NewFile file = NewFile::create(directory_ / "file");
  const auto batch = plan_write(file, choose_route(file, WriteMethod::kBuffered), parts_of(content), 64 * kKiB);
  const auto code = testing::run_without_threads([&] {
    Crew crew(settings(), pool_);
    try {
      start_writing(crew, batch);
    } catch (const Error& error) {
      const bool said = std::string(error.what()).find("cannot start a thread: ") == 0;
      return said && error.kind() == ErrorKind::kIo && error.error_number() == EAGAIN ? 0 : 1;
    }
    return 2;
  });
  if (!code) GTEST_SKIP() << "this process can't be kept from starting threads";
  EXPECT_EQ(*code, 0);
}

TEST_P(TransferTest, a_crew_that_gets_fewer_threads_than_it_wants_does_the_work_with_those) {
  if (GetParam().name == "threads") GTEST_SKIP() << "its engine needs threads too";
  const auto content = testing::random_bytes(kSize);
  NewFile file = NewFile::create(directory_ / "file");
  const auto batch = plan_write(file, choose_route(file, WriteMethod::kBuffered), parts_of(content), 64 * kKiB);
  const auto code = testing::run_with_threads(1, [&] {
    Crew crew(settings(), pool_);
    start_writing(crew, batch);
    const Stopwatch watch;
    wait_with_progress(*batch, {}, kSize, watch);
    return 0;
  });
  if (!code) GTEST_SKIP() << "this process's threads can't be counted";
  EXPECT_EQ(*code, 0);
  file.finish(kSize, false);
  file.publish();
  EXPECT_TRUE(testing::read_file(directory_ / "file") == content);
}

INSTANTIATE_TEST_SUITE_P(backends, TransferTest, ::testing::ValuesIn(testing::all_backends()),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace penstock
