// Files written from front to back: over every backend, with faults, the bytes are right or there is an error that says
// what is wrong, and then the old file is still there.
#include "penstock/stream_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <thread>

#include "api/aio/stream_file_state.h"
#include "base/bytes.h"
#include "penstock/error.h"
#include "testing/errors.h"
#include "testing/fault_engine.h"
#include "testing/files.h"
#include "testing/limits.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using testing::Faults;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using testing::TempDir;

constexpr std::uint64_t kBlock = 64 * kKiB;
const Faults kRough{
    .short_transfer = 0.3, .interrupted = 0.1, .try_again = 0.05, .held_back = 0.3, .delay_microseconds = 50};

mode_t mode_of(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

class StreamFileTest : public ::testing::TestWithParam<testing::NamedFactory> {
 protected:
  StreamFile open(const Faults& faults = {}, const StreamOptions& options = {}) const {
    const Settings settings{testing::with_faults(GetParam().make, faults), kBlock, 4, 2};
    return StreamFile(std::make_unique<StreamFile::State>(path_, options, settings));
  }

  // Appends `content` in pieces of these sizes, round and round.
  static void append(StreamFile& file, std::span<const std::byte> content, const std::vector<std::size_t>& pieces) {
    for (std::size_t done = 0, turn = 0; done < content.size(); ++turn) {
      const std::size_t piece = std::min(pieces[turn % pieces.size()], content.size() - done);
      file.append(content.data() + done, piece);
      done += piece;
    }
  }

  std::vector<std::byte> content() const { return testing::read_file(path_); }

  TempDir directory_;
  std::filesystem::path path_ = directory_ / "file";
};

const std::vector<std::vector<std::size_t>> kPieces = {
    {1 << 30}, {kBlock}, {1000}, {kBlock - 1, 2, 3 * kBlock, 17}, {5 * kBlock + 1, 511}};

TEST_P(StreamFileTest, every_size_around_the_block_arrives_however_rough_the_way) {
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{511}, std::uint64_t{4096},
                                   kBlock - 1, kBlock, kBlock + 1, 2 * kBlock, 9 * kBlock + 513, 40 * kBlock}) {
    const auto bytes = testing::random_bytes(size, static_cast<std::uint32_t>(size));
    for (const auto& pieces : kPieces) {
      for (const Faults& faults : {Faults{}, kRough}) {
        StreamFile file = open(faults);
        append(file, bytes, pieces);
        EXPECT_EQ(file.size(), size);
        file.finish();
        EXPECT_TRUE(content() == bytes) << size << " in pieces of " << pieces.front();
      }
    }
  }
  EXPECT_THAT(directory_.names(), ElementsAre("file"));
}

TEST_P(StreamFileTest, every_method_writes_the_same) {
  const auto bytes = testing::random_bytes(7 * kBlock + 77);
  for (const WriteMethod method : {WriteMethod::kAuto, WriteMethod::kDirect, WriteMethod::kBuffered}) {
    StreamOptions options;
    options.method = method;
    StreamFile file = open(kRough, options);
    append(file, bytes, {3 * kBlock + 5});
    file.finish();
    EXPECT_TRUE(content() == bytes);
    EXPECT_NE(file.stats().path, "");
  }
}

TEST_P(StreamFileTest, nothing_of_a_longer_file_stays) {
  testing::write_file(path_, testing::random_bytes(20 * kBlock));
  const auto bytes = testing::random_bytes(3 * kBlock + 5, 2);
  StreamFile file = open();
  append(file, bytes, {kBlock});
  file.finish();
  EXPECT_TRUE(content() == bytes);
}

TEST_P(StreamFileTest, an_error_comes_out_of_the_next_call_and_of_every_later_one) {
  testing::write_file(path_, "old");
  const auto bytes = testing::random_bytes(30 * kBlock + 5);
  for (const int error_number : {EIO, ENOSPC}) {
    for (std::int64_t request = 0; request < 31; request += 5) {
      StreamFile file = open({.fail_at = request, .error_number = error_number});
      const std::string first = message_of([&] {
        append(file, bytes, {kBlock / 2, 3 * kBlock});
        file.finish();
      });
      EXPECT_THAT(first, HasSubstr(path_.string() + ": write of "));
      EXPECT_THAT(first, HasSubstr(" at offset "));
      EXPECT_THAT(first, HasSubstr(error_number == EIO ? "Input/output error" : "No space left on device"));
      EXPECT_EQ(message_of([&] { file.append("x", 1); }), first);
      EXPECT_EQ(message_of([&] { file.flush(); }), first);
      EXPECT_EQ(message_of([&] { file.finish(); }), first);
      EXPECT_EQ(content().size(), 3u);
      EXPECT_THAT(directory_.names(), ElementsAre("file"));
    }
  }
}

TEST_P(StreamFileTest, flush_brings_out_the_error_of_a_write_under_way) {
  const auto bytes = testing::random_bytes(kBlock);
  StreamFile file = open({.delay_microseconds = 20'000, .fail_at = 0, .error_number = EIO});
  EXPECT_THAT(message_of([&] {
                append(file, bytes, {kBlock / 4});
                file.flush();
              }),
              HasSubstr("write of 65536 bytes at offset 0 failed: Input/output error"));
}

TEST_P(StreamFileTest, an_engine_that_breaks_down_is_an_error_and_not_a_hang) {
  const auto bytes = testing::random_bytes(30 * kBlock);
  StreamFile file = open({.break_at = 3});
  EXPECT_THAT(message_of([&] {
                append(file, bytes, {kBlock});
                file.finish();
              }),
              HasSubstr("backend failed: Bad file descriptor"));
  EXPECT_THAT(directory_.names(), IsEmpty());
}

TEST_P(StreamFileTest, what_is_not_finished_leaves_nothing_behind) {
  const auto bytes = testing::random_bytes(10 * kBlock);
  const std::size_t descriptors = testing::open_descriptors();
  testing::write_file(directory_ / "other", "x");
  {
    StreamFile file = open(kRough);
    append(file, bytes, {kBlock});
  }
  StreamFile abandoned = open();
  append(abandoned, bytes, {kBlock + 1});
  abandoned.abandon();
  EXPECT_EQ(message_of([&] { abandoned.finish(); }), path_.string() + ": was abandoned");
  EXPECT_THAT(directory_.names(), ElementsAre("other"));
  EXPECT_EQ(testing::open_descriptors(), descriptors);
}

TEST_P(StreamFileTest, finish_twice_is_once_and_nothing_can_be_added_after_it) {
  StreamFile file = open();
  file.append("abc", 3);
  file.finish();
  file.finish();
  file.abandon();
  EXPECT_EQ(message_of([&] { file.append("d", 1); }), path_.string() + ": is finished, nothing can be added to it");
  EXPECT_EQ(content().size(), 3u);
}

TEST_P(StreamFileTest, counts_what_it_did) {
  const auto bytes = testing::random_bytes(5 * kBlock + 100);
  StreamFile file = open();
  append(file, bytes, {kBlock / 2, 2 * kBlock});
  file.finish();
  const StreamStats stats = file.stats();
  EXPECT_EQ(stats.bytes, bytes.size());
  EXPECT_EQ(stats.bytes_written + stats.bytes_slow, bytes.size());
  EXPECT_EQ(stats.writes, 6u);
  EXPECT_GE(stats.fills, 6u);
  EXPECT_GT(stats.fill_seconds, 0);
  EXPECT_GT(stats.write_seconds, 0);
  EXPECT_GE(stats.seconds, stats.write_seconds);
  EXPECT_EQ(stats.backend, GetParam().name);
  EXPECT_EQ(file.stats().seconds, stats.seconds);
}

TEST_P(StreamFileTest, less_than_a_block_goes_through_the_page_cache) {
  StreamFile file = open();
  file.append("abc", 3);
  file.finish();
  const StreamStats stats = file.stats();
  EXPECT_EQ(stats.bytes_slow, 3u);
  EXPECT_EQ(stats.writes, 0u);
  EXPECT_EQ(stats.path, "buffered");
  EXPECT_EQ(stats.backend, "");
}

TEST_P(StreamFileTest, one_block_or_little_staging_is_enough) {
  const auto bytes = testing::random_bytes(9 * kBlock + 3);
  StreamOptions single;
  single.overlap = false;
  StreamOptions little;
  little.max_staging = 1;
  for (const StreamOptions& options : {single, little}) {
    StreamFile file = open(kRough, options);
    append(file, bytes, {1000, 4 * kBlock});
    file.finish();
    EXPECT_TRUE(content() == bytes);
  }
}

TEST_P(StreamFileTest, another_thread_may_go_on_with_it) {
  const auto bytes = testing::random_bytes(8 * kBlock);
  StreamFile file = open();
  file.append(bytes.data(), 3 * kBlock + 1);
  std::thread([&] { file.append(bytes.data() + 3 * kBlock + 1, 2 * kBlock); }).join();
  std::thread([&] {
    file.append(bytes.data() + 5 * kBlock + 1, 3 * kBlock - 1);
    file.finish();
  }).join();
  EXPECT_TRUE(content() == bytes);
}

INSTANTIATE_TEST_SUITE_P(backends, StreamFileTest, ::testing::ValuesIn(testing::all_backends()),
                         [](const auto& param_info) { return param_info.param.name; });

TEST(StreamFileModeTest, follows_the_umask_or_the_old_file) {
  const TempDir directory;
  const mode_t before = ::umask(027);
  const auto path = directory / "a";
  StreamFile(path).finish();
  EXPECT_EQ(mode_of(path), 0640u);
  std::filesystem::permissions(path, std::filesystem::perms(0604));
  StreamFile(path).finish();
  EXPECT_EQ(mode_of(path), 0604u);
  ::umask(before);
}

TEST(StreamFilePathTest, what_is_no_place_for_a_file_is_refused) {
  const TempDir directory;
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  const auto refusal = [&](const std::filesystem::path& path) {
    return message_of([&] { const StreamFile file(path); });
  };
  EXPECT_THAT(refusal(directory.path()), HasSubstr("Is a directory"));
  EXPECT_THAT(refusal(directory / "missing/file"), HasSubstr("No such file or directory"));
  EXPECT_THAT(refusal(directory / "pipe"), HasSubstr("is not a regular file"));
  EXPECT_THAT(refusal(""), HasSubstr("names no file to write"));
}

TEST(StreamFilePathTest, a_link_is_replaced_and_not_followed) {
  const TempDir directory;
  testing::write_file(directory / "real", "old");
  std::filesystem::create_symlink(directory / "real", directory / "link");
  StreamFile replacing(directory / "link");
  replacing.append("newer", 5);
  replacing.finish();
  EXPECT_FALSE(std::filesystem::is_symlink(directory / "link"));
  EXPECT_EQ(testing::read_file(directory / "real").size(), 3u);
}

TEST(StreamFileSpaceTest, a_reservation_meets_a_full_disk_at_once_and_does_not_show) {
  const TempDir directory;
  StreamFile file(directory / "file");
  file.reserve(100 * kMiB);
  const auto bytes = testing::random_bytes(5 * kMiB + 1);
  file.append(bytes.data(), bytes.size());
  file.finish();
  struct stat status {};
  ASSERT_EQ(::stat((directory / "file").c_str(), &status), 0);
  EXPECT_EQ(static_cast<std::size_t>(status.st_size), bytes.size());
  EXPECT_LE(status.st_blocks * 512, static_cast<long>(8 * kMiB));

  StreamFile huge(directory / "huge");
  EXPECT_THAT(message_of([&] { huge.reserve(std::uint64_t{1} << 55); }), HasSubstr((directory / "huge").string()));
  EXPECT_THROW(huge.append("x", 1), Error);
  EXPECT_THAT(directory.names(), ElementsAre("file"));
}

// A limit on a file's size stands in for a quota: it can't be seen before it is hit.
TEST(StreamFileSpaceTest, a_quota_is_an_error_that_leaves_the_old_file) {
  const TempDir directory;
  testing::write_file(directory / "file", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4 * kMiB, 4 * kMiB};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int code = 1;
    try {
      const std::vector<std::byte> bytes(9 * kMiB);
      StreamFile file(directory / "file");
      file.append(bytes.data(), bytes.size());
      file.finish();
    } catch (const Error& error) {
      code = error.kind() == ErrorKind::kNoSpace && error.error_number() == EFBIG ? 0 : 2;
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(testing::read_file(directory / "file").size(), 3u);
  EXPECT_THAT(directory.names(), ElementsAre("file"));
}

TEST(StreamFileThreadsTest, without_threads_there_is_an_error_and_no_hang) {
  const TempDir directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms::all);
  const auto code = testing::run_without_threads([&] {
    try {
      const std::vector<std::byte> bytes(9 * kMiB);
      StreamFile file(directory / "file");
      file.append(bytes.data(), bytes.size());
      file.finish();
    } catch (const Error& error) {
      return std::string(error.what()).find("cannot start a thread") != std::string::npos ? 0 : 2;
    }
    return 1;
  });
  if (!code) GTEST_SKIP() << "this process can't be kept from starting threads";
  EXPECT_EQ(*code, 0);
  EXPECT_THAT(directory.names(), IsEmpty());
}

}  // namespace
}  // namespace penstock
