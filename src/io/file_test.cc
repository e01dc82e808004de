#include "io/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/residency.h"
#include "penstock/error.h"
#include "testing/errors.h"
#include "testing/files.h"

namespace penstock {
namespace {

using testing::error_of;
using testing::TempDir;

TEST(FileTest, a_missing_file_is_named) {
  const TempDir directory;
  const Error error = error_of([&] { File::open(directory / "nothing"); });
  EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
  EXPECT_EQ(error.what(), (directory / "nothing").string() + ": cannot open: No such file or directory");
}

TEST(FileTest, a_directory_is_refused) {
  const TempDir directory;
  EXPECT_EQ(error_of([&] { File::open(directory.path()); }).kind(), ErrorKind::kIsDirectory);
}

TEST(FileTest, a_fifo_is_refused_and_not_waited_for) {
  const TempDir directory;
  ASSERT_EQ(::mkfifo((directory / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { File::open(directory / "fifo"); }).kind(), ErrorKind::kArgument);
}

TEST(FileTest, a_file_in_memory_has_its_size_and_what_is_written_to_it) {
  const File file = File::in_memory("f", 100);
  EXPECT_EQ(file.size(), 100u);
  EXPECT_EQ(file.path(), "f");
  ASSERT_EQ(::pwrite(file.fd(), "abc", 3, 97), 3);
  std::string bytes(4, '?');
  file.read(96, bytes.data(), bytes.size());
  EXPECT_EQ(bytes, std::string("\0abc", 4));
  EXPECT_NO_THROW(file.check_unchanged());  // who made it writes to it
}

TEST(FileTest, reading_past_the_end_says_that_the_file_shrank) {
  const TempDir directory;
  testing::write_file(directory / "file", testing::random_bytes(100));
  const File file = File::open(directory / "file");
  std::byte bytes[20];
  EXPECT_EQ(error_of([&] { file.read(90, bytes, 20); }).kind(), ErrorKind::kChanged);
}

TEST(FileTest, a_change_after_opening_is_noticed) {
  const TempDir directory;
  testing::write_file(directory / "file", testing::random_bytes(100));
  const File file = File::open(directory / "file");
  EXPECT_NO_THROW(file.check_unchanged());
  ASSERT_EQ(::truncate((directory / "file").c_str(), 50), 0);
  const Error error = error_of([&] { file.check_unchanged(); });
  EXPECT_EQ(error.kind(), ErrorKind::kChanged);
  EXPECT_NE(std::string(error.what()).find("had 100 bytes when it was opened and has 50 now"), std::string::npos);
}

TEST(FileTest, a_direct_read_gives_the_same_bytes_where_there_is_direct_io) {
  const TempDir directory;
  const auto content = testing::random_bytes(8192);
  testing::write_file(directory / "file", content);
  const File file = File::open(directory / "file");
  const File::Direct& direct = file.direct();
  if (!direct.fd) GTEST_SKIP() << "the filesystem of " << directory.path() << " refuses direct I/O";
  EXPECT_GE(direct.alignment.offset, 1u);
  alignas(4096) static std::byte buffer[8192];
  ASSERT_EQ(::pread(direct.fd.get(), buffer, sizeof buffer, 0), 8192);
  EXPECT_EQ(std::vector<std::byte>(buffer, buffer + 8192), content);
}

TEST(FileTest, the_direct_descriptor_is_of_the_same_file_after_a_replacement) {
  const TempDir directory;
  const auto content = testing::random_bytes(4096, 1);
  testing::write_file(directory / "file", content);
  const File file = File::open(directory / "file");
  testing::write_file(directory / "other", testing::random_bytes(4096, 2));
  std::filesystem::rename(directory / "other", directory / "file");
  const File::Direct& direct = file.direct();
  if (!direct.fd) GTEST_SKIP() << "the filesystem of " << directory.path() << " refuses direct I/O";
  alignas(4096) static std::byte buffer[4096];
  ASSERT_EQ(::pread(direct.fd.get(), buffer, sizeof buffer, 0), 4096);
  EXPECT_EQ(std::vector<std::byte>(buffer, buffer + 4096), content);
}

TEST(ResidencyTest, both_ways_agree_on_a_cached_and_a_dropped_file) {
  const TempDir directory;
  testing::write_file(directory / "file", testing::random_bytes(1 << 20));
  const File file = File::open(directory / "file");
  const ByteRange whole{0, 1 << 20};
  EXPECT_EQ(file.resident_bytes(whole), whole.size());
  EXPECT_EQ(resident_bytes_by_mincore(file.fd(), whole), 1 << 20);
  EXPECT_EQ(resident_bytes_by_sample(file.fd(), whole), 1 << 20);
  ASSERT_EQ(::fsync(file.fd()), 0);
  ASSERT_EQ(::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED), 0);
  const auto left = resident_bytes_by_mincore(file.fd(), whole);
  if (left != 0) GTEST_SKIP() << "the filesystem of " << directory.path() << " keeps its pages";
  EXPECT_EQ(file.resident_bytes(whole), 0u);
  EXPECT_EQ(resident_bytes_by_sample(file.fd(), whole), 0);
}

TEST(ResidencyTest, a_user_who_does_not_own_a_cold_file_is_not_told_that_it_is_cached) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const TempDir directory;
  testing::write_file(directory / "file", testing::random_bytes(8 << 20));
  ASSERT_EQ(::chmod(directory.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod((directory / "file").c_str(), 0644), 0);
  const File file = File::open(directory / "file");
  const ByteRange whole{0, 8 << 20};
  ASSERT_EQ(::fsync(file.fd()), 0);
  ASSERT_EQ(::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED), 0);
  if (file.resident_bytes(whole) != 0) GTEST_SKIP() << "the filesystem of " << directory.path() << " keeps its pages";
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    // Asking must not make the answer wrong the next time.
    for (int i = 0; i < 10; ++i) {
      if (resident_bytes(file.fd(), whole) > whole.size() / 2) ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ResidencyTest, fresh_memory_is_told_from_used_memory) {
  const std::size_t size = 1 << 20;
  auto fresh = std::unique_ptr<void, decltype(&std::free)>(std::aligned_alloc(4096, 64 * size), &std::free);
  auto* data = static_cast<std::byte*>(fresh.get());
  EXPECT_FALSE(memory_is_resident(data, 64 * size));
  for (std::size_t i = 0; i < 64 * size; i += 4096) data[i] = std::byte{1};
  EXPECT_TRUE(memory_is_resident(data, 64 * size));
}

}  // namespace
}  // namespace penstock
