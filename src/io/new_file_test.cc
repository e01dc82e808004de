#include "io/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "io/closing.h"
#include "penstock/error.h"
#include "testing/errors.h"
#include "testing/files.h"

namespace penstock {
namespace {

using testing::TempDir;

mode_t mode_of(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

void save(const std::filesystem::path& path, std::string_view text) {
  NewFile file = NewFile::create(path);
  file.reserve(text.size());
  file.write(0, text.data(), text.size());
  file.finish(text.size(), /*durable=*/true);
  file.publish();
  file.sync_name();
}

std::string content_of(const std::filesystem::path& path) {
  const auto bytes = testing::read_file(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(NewFileTest, appears_whole_and_alone) {
  const TempDir directory;
  save(directory / "file", "hello");
  EXPECT_EQ(content_of(directory / "file"), "hello");
  EXPECT_EQ(directory.names(), std::vector<std::string>{"file"});
}

TEST(NewFileTest, nothing_is_seen_before_it_is_published_nor_left_when_it_is_given_up) {
  const TempDir directory;
  testing::write_file(directory / "file", "old");
  {
    NewFile file = NewFile::create(directory / "file");
    file.write(0, "new and longer", 14);
    EXPECT_EQ(content_of(directory / "file"), "old");
  }
  EXPECT_EQ(content_of(directory / "file"), "old");
  EXPECT_EQ(directory.names(), std::vector<std::string>{"file"});
}

TEST(NewFileTest, replaces_a_longer_file_wholly) {
  const TempDir directory;
  testing::write_file(directory / "file", "something much longer");
  save(directory / "file", "short");
  EXPECT_EQ(content_of(directory / "file"), "short");
  EXPECT_EQ(directory.names(), std::vector<std::string>{"file"});
}

TEST(NewFileTest, a_new_file_follows_the_umask_and_a_replaced_one_keeps_its_mode) {
  const TempDir directory;
  const mode_t before = ::umask(027);
  save(directory / "file", "a");
  EXPECT_EQ(mode_of(directory / "file"), 0640u);
  ASSERT_EQ(::chmod((directory / "file").c_str(), 0604), 0);
  save(directory / "file", "b");
  EXPECT_EQ(mode_of(directory / "file"), 0604u);
  ::umask(before);
}

TEST(NewFileTest, a_symbolic_link_is_replaced_and_its_target_left_alone) {
  const TempDir directory;
  testing::write_file(directory / "target", "target");
  std::filesystem::create_symlink("target", directory / "link");
  save(directory / "link", "new");
  EXPECT_EQ(content_of(directory / "target"), "target");
  EXPECT_EQ(content_of(directory / "link"), "new");
  EXPECT_FALSE(std::filesystem::is_symlink(directory / "link"));
}

TEST(NewFileTest, a_directory_in_the_way_is_refused) {
  const TempDir directory;
  std::filesystem::create_directory(directory / "file");
  EXPECT_THROW(NewFile::create(directory / "file"), Error);
}

TEST(NewFileTest, a_name_that_is_too_long_is_refused_before_anything_is_written) {
  const TempDir directory;
  EXPECT_THAT(testing::message_of([&] { NewFile::create(directory / std::string(256, 'x')); }),
              ::testing::HasSubstr("File name too long"));
}

TEST(NewFileTest, a_fifo_in_the_way_is_refused) {
  const TempDir directory;
  ASSERT_EQ(::mkfifo((directory / "fifo").c_str(), 0600), 0);
  EXPECT_THROW(NewFile::create(directory / "fifo"), Error);
}

TEST(NewFileTest, a_withdrawn_name_is_gone_unless_it_was_taken_before) {
  const TempDir directory;
  testing::write_file(directory / "old", "old");
  for (const char* name : {"old", "new"}) {
    for (const bool early : {false, true}) {
      NewFile file = NewFile::create(directory / name);
      if (early) file.take_name();
      file.finish(0, false);
      file.publish();
      file.withdraw();
    }
  }
  EXPECT_EQ(directory.names(), std::vector<std::string>{"old"});
}

TEST(NewFileTest, a_file_that_takes_a_name_early_is_the_same_file_and_can_be_opened_by_it) {
  const TempDir directory;
  {
    NewFile file = NewFile::create(directory / "file");
    file.write(0, "before", 6);
    ASSERT_TRUE(file.use_direct());
    file.take_name();
    const std::string name = file.temporary();
    EXPECT_EQ(directory.names(), std::vector<std::string>{name});
    EXPECT_EQ(::fcntl(file.fd(), F_GETFL) & (O_TMPFILE | O_DIRECT), O_DIRECT);
    EXPECT_EQ(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file.fd())), directory / name);
    file.use_buffered();
    file.write(6, " and after", 10);
    file.take_name();  // has one
    NewFile::join(directory / "file", name).take_name();
    EXPECT_EQ(directory.names(), std::vector<std::string>{name});
    file.finish(16, false);
    file.publish();
  }
  EXPECT_EQ(directory.names(), std::vector<std::string>{"file"});
  EXPECT_EQ(content_of(directory / "file"), "before and after");
  NewFile::create(directory / "other").take_name();
  EXPECT_EQ(directory.names(), std::vector<std::string>{"file"});
}

TEST(NewFileTest, a_missing_directory_is_named) {
  const TempDir directory;
  try {
    NewFile::create(directory / "nowhere" / "file");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
    EXPECT_NE(std::string(error.what()).find("nowhere"), std::string::npos);
  }
}

TEST(NewFileTest, more_than_the_filesystem_has_is_refused_up_front) {
  const TempDir directory;
  NewFile file = NewFile::create(directory / "file");
  try {
    file.reserve(std::uint64_t{1} << 50);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNoSpace);
    EXPECT_NE(std::string(error.what()).find("needs 1125899906842624 bytes"), std::string::npos);
  }
}

// A limit on the size of files stands in for a full disk, and its end for a large file that is freed meanwhile.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t nbytes) : old_action_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{nbytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  SizeLimit(const SizeLimit&) = delete;
  SizeLimit& operator=(const SizeLimit&) = delete;
  ~SizeLimit() {
    wait_for_closing();  // which may have this to lift
    lift();
    std::signal(SIGXFSZ, old_action_);
  }
  void lift() { ::setrlimit(RLIMIT_FSIZE, &old_); }

 private:
  void (*old_action_)(int);
  rlimit old_{};
};

TEST(NewFileTest, a_full_disk_is_asked_again_once_what_was_replaced_is_freed) {
  const TempDir directory;
  constexpr std::chrono::milliseconds kSoon{50};
  const auto fill = {+[](NewFile& file) { file.reserve(8); }, +[](NewFile& file) { file.write(0, "12345678", 8); }};
  for (const auto& step : fill) {
    NewFile file = NewFile::create(directory / "file");
    SizeLimit limit(4);
    run_while_closing([&] {
      std::this_thread::sleep_for(kSoon);
      limit.lift();
    });
    step(file);
    EXPECT_EQ(std::filesystem::file_size(fmt::format("/proc/self/fd/{}", file.fd())), 8u);
  }
  for (const auto& step : fill) {
    NewFile file = NewFile::create(directory / "file");
    const SizeLimit limit(4);
    EXPECT_EQ(testing::error_of([&] { step(file); }).kind(), ErrorKind::kNoSpace);
  }
}

TEST(NewFileTest, a_name_of_the_greatest_length_works_twice) {
  const TempDir directory;
  const std::string name(255, 'n');
  save(directory / name, "a");
  save(directory / name, "b");
  EXPECT_EQ(content_of(directory / name), "b");
  EXPECT_EQ(directory.names(), std::vector<std::string>{name});
}

TEST(NewFileTest, a_name_is_synced_with_a_journal_and_without) {
  // ext4 and xfs have one, tmpfs has none.
  for (const char* parent : {"/dev/shm", "/tmp", "."}) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(parent, ignored) || ::access(parent, W_OK) != 0) continue;
    const TempDir directory{std::filesystem::path(parent)};
    save(directory / "file", "a");
    save(directory / "file", "b");
    EXPECT_EQ(content_of(directory / "file"), "b") << parent;
    EXPECT_EQ(directory.names(), std::vector<std::string>{"file"}) << parent;
  }
}

TEST(NewFileTest, a_sync_of_the_directory_that_fails_says_that_the_file_is_in_place) {
  const TempDir directory;
  NewFile file = NewFile::create(directory / "file");
  file.write(0, "new", 3);
  file.finish(3, /*durable=*/true);
  file.publish();
  // The directory's descriptor becomes one that can't be synced.
  const UniqueFd unsyncable(::open(directory.path().c_str(), O_PATH | O_CLOEXEC));
  ASSERT_GE(::dup2(unsyncable.get(), file.directory()), 0);
  EXPECT_EQ(testing::message_of([&] { file.sync_name(); }),
            fmt::format("{}: is in place under its name, but may not survive a power cut: the sync of its directory "
                        "failed: Bad file descriptor",
                        (directory / "file").native()));
  EXPECT_EQ(content_of(directory / "file"), "new");
}

// As a save by GPUDirect Storage has, and ranks that share a file.
TEST(NewFileTest, a_hidden_name_of_a_process_that_was_killed_is_known_for_dead) {
  for (const bool early : {true, false}) {
    const TempDir directory;
    const pid_t child = ::fork();
    if (child == 0) {
      NewFile file = early ? NewFile::create_named(directory / "file") : NewFile::create(directory / "file");
      if (!early) file.take_name();
      ::raise(SIGKILL);
    }
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    EXPECT_EQ(directory.names().size(), 1u);
    const NewFile living = NewFile::create_named(directory / "file");
    const UniqueFd folder(::open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    remove_dead_temporaries(folder.get(), [](std::string_view) { return false; });
    EXPECT_EQ(directory.names(), std::vector<std::string>{living.temporary()});
  }
}

TEST(NewFileTest, no_descriptor_is_leaked) {
  const TempDir directory;
  const std::size_t before = testing::open_descriptors();
  save(directory / "file", "a");
  EXPECT_THROW(NewFile::create(directory / "nowhere" / "file"), Error);
  EXPECT_EQ(testing::open_descriptors(), before);
}

}  // namespace
}  // namespace penstock
