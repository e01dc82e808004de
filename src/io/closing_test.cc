#include "io/closing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "io/new_file.h"
#include "testing/files.h"

namespace penstock {
namespace {

using testing::TempDir;

constexpr std::uint64_t kLarge = 128 * kMiB;

NewFile large_file(const std::filesystem::path& path) {
  NewFile file = NewFile::create(path);
  file.reserve(kLarge);
  file.finish(kLarge, /*durable=*/false);
  return file;
}

TEST(ClosingTest, only_large_files_are_worth_a_thread) {
  const TempDir directory;
  testing::write_file(directory / "small", "small");
  const UniqueFd small(::open((directory / "small").c_str(), O_PATH));
  EXPECT_FALSE(frees_much(small.get()));
  EXPECT_FALSE(frees_much(-1));
  const NewFile large = large_file(directory / "large");
  EXPECT_TRUE(frees_much(large.fd()));
}

TEST(ClosingTest, a_large_file_that_is_replaced_is_freed) {
  const TempDir directory;
  wait_for_closing();  // what other tests left
  const std::size_t before = testing::open_descriptors();
  large_file(directory / "file").publish();
  large_file(directory / "file").publish();
  wait_for_closing();
  EXPECT_EQ(testing::open_descriptors(), before);
  EXPECT_EQ(directory.names(), std::vector<std::string>{"file"});
  EXPECT_EQ(std::filesystem::file_size(directory / "file"), kLarge);
}

TEST(ClosingTest, a_large_file_that_is_given_up_is_freed) {
  const TempDir directory;
  wait_for_closing();  // what other tests left
  const std::size_t before = testing::open_descriptors();
  large_file(directory / "file");
  NewFile::create_named(directory / "named").reserve(kLarge);
  wait_for_closing();
  EXPECT_EQ(testing::open_descriptors(), before);
  EXPECT_TRUE(directory.names().empty());
}

TEST(ClosingTest, a_child_does_not_wait_for_its_parents_threads) {
  const TempDir directory;
  for (int i = 0; i < 4; ++i) large_file(directory / "file").publish();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);
    wait_for_closing();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  wait_for_closing();
}

}  // namespace
}  // namespace penstock
