#include "api/save/set_journal.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/save/set_files.h"
#include "testing/errors.h"
#include "testing/files.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TempDir;

constexpr const char* kJournal = ".m.safetensors.saving";
constexpr const char* kIndex = "m.safetensors.index.json";
constexpr const char* kOld = "old.safetensors";
constexpr const char* kNew = "new.safetensors";

SetEntry entry_in(const TempDir& directory, const std::string& name) {
  const UniqueFd folder(::open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return find_entry(folder.get(), name).value_or(SetEntry{name, 1, 1});
}

// A directory in which a saver was killed; `committed`: after its index was there.
struct SetJournalTest : ::testing::Test {
  void leave_dead_journal(bool committed) {
    for (const char* name : {kOld, kNew, "bystander", kIndex}) testing::write_file(directory / name, name);
    testing::write_file(directory / kIndex, R"({"weight_map": {}})");
    SetChange change{entry_in(directory, kIndex), {entry_in(directory, kNew)}, {entry_in(directory, kOld)}};
    if (!committed) change.index.inode += 1;
    testing::write_file(directory / kJournal, encode_change(change));
  }
  void recover() { const SetJournal journal(set); }

  TempDir directory;
  const std::filesystem::path set = directory / "m.safetensors";
};

TEST_F(SetJournalTest, is_there_and_locked_for_as_long_as_it_is_used) {
  {
    const SetJournal journal(set);
    EXPECT_TRUE(SetJournal::exists(set));
    const UniqueFd other(::open((directory / kJournal).c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), -1);
  }
  EXPECT_FALSE(SetJournal::exists(set));
  EXPECT_THAT(directory.names(), ElementsAre());
}

TEST_F(SetJournalTest, what_was_recorded_and_not_finished_is_left_to_the_next) {
  testing::write_file(directory / kOld, "");
  const SetChange change{{kIndex, 1, 2}, {}, {entry_in(directory, kOld)}};
  {
    SetJournal journal(set);
    journal.record(change, /*durable=*/true);
  }
  const auto bytes = testing::read_file(directory / kJournal);
  EXPECT_EQ(parse_change({reinterpret_cast<const char*>(bytes.data()), bytes.size()}), change);
  recover();
  EXPECT_THAT(directory.names(), ElementsAre(kOld));
}

TEST_F(SetJournalTest, a_saver_that_died_before_its_commit_loses_its_new_files) {
  leave_dead_journal(/*committed=*/false);
  recover();
  EXPECT_THAT(directory.names(), ElementsAre("bystander", kIndex, kOld));
}

TEST_F(SetJournalTest, a_saver_that_died_after_its_commit_loses_its_old_files) {
  leave_dead_journal(/*committed=*/true);
  recover();
  EXPECT_THAT(directory.names(), ElementsAre("bystander", kIndex, kNew));
}

TEST_F(SetJournalTest, a_file_that_was_written_since_is_another_and_stays) {
  leave_dead_journal(/*committed=*/true);
  const timespec times[] = {{0, UTIME_OMIT}, {1000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (directory / kOld).c_str(), times, 0), 0);
  recover();
  EXPECT_THAT(directory.names(), ElementsAre("bystander", kIndex, kNew, kOld));
}

TEST_F(SetJournalTest, what_the_index_that_is_there_lists_stays) {
  testing::write_file(directory / kIndex, R"({"weight_map": {"a": "old.safetensors", "b": "new.safetensors"}})");
  for (const bool committed : {false, true}) {
    for (const char* name : {kOld, kNew}) testing::write_file(directory / name, name);
    SetChange change{entry_in(directory, kIndex), {entry_in(directory, kNew)}, {entry_in(directory, kOld)}};
    if (!committed) change.index.inode += 1;
    testing::write_file(directory / kJournal, encode_change(change));
    recover();
    EXPECT_THAT(directory.names(), ElementsAre(kIndex, kNew, kOld));
  }
}

TEST_F(SetJournalTest, what_the_index_of_another_set_lists_stays) {
  testing::write_file(directory / "other.safetensors.index.json", R"({"weight_map": {"a": "old.safetensors"}})");
  leave_dead_journal(/*committed=*/true);
  recover();
  EXPECT_TRUE(std::filesystem::exists(directory / kOld));
}

TEST_F(SetJournalTest, nothing_goes_while_the_index_that_is_there_can_not_be_read) {
  leave_dead_journal(/*committed=*/false);
  testing::write_file(directory / kIndex, R"({"weight_map": {"a": "new.safe)");
  recover();
  EXPECT_THAT(directory.names(), ElementsAre("bystander", kIndex, kNew, kOld));
}

TEST_F(SetJournalTest, a_journal_removes_only_files_of_the_kind_of_its_set) {
  leave_dead_journal(/*committed=*/true);
  const SetChange change{entry_in(directory, kIndex), {}, {entry_in(directory, "bystander")}};
  testing::write_file(directory / kJournal, encode_change(change));
  recover();
  EXPECT_THAT(directory.names(), ElementsAre("bystander", kIndex, kNew, kOld));
}

// In a directory that several users write to.
TEST_F(SetJournalTest, another_user_goes_on_where_a_saver_died) {
  for (const bool empty : {false, true}) {
    leave_dead_journal(/*committed=*/true);
    if (empty) std::filesystem::resize_file(directory / kJournal, 0);
    ASSERT_EQ(::chmod((directory / kJournal).c_str(), 0644), 0);
    ASSERT_EQ(::chmod(directory.path().c_str(), 0777), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      if (::getuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
      try {
        SetJournal journal(set);
        journal.record({{kIndex, 1, 2}, {}, {}}, /*durable=*/true);
        journal.finish();
      } catch (const Error&) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(std::filesystem::exists(directory / kOld), empty);
    EXPECT_FALSE(SetJournal::exists(set));
  }
}

TEST_F(SetJournalTest, a_directory_where_none_can_be_made_is_named) {
  ASSERT_EQ(::chmod(directory.path().c_str(), 0555), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::getuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
    const std::string message = message_of([&] { recover(); });
    ::_exit(message.find("cannot open .m.safetensors.saving: Permission denied") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(::chmod(directory.path().c_str(), 0755), 0);
}

TEST_F(SetJournalTest, the_seal_of_a_file_goes_where_the_file_goes) {
  const std::string old_seal = std::string(kOld) + ".seal.json";
  leave_dead_journal(/*committed=*/true);
  testing::write_file(directory / old_seal, "{}");
  testing::write_file(directory / "bystander.seal.json", "{}");
  const SetChange change{
      entry_in(directory, kIndex), {}, {entry_in(directory, old_seal), entry_in(directory, "bystander.seal.json")}};
  testing::write_file(directory / kJournal, encode_change(change));
  recover();
  EXPECT_THAT(directory.names(), ElementsAre("bystander", "bystander.seal.json", kIndex, kNew, kOld));
}

TEST_F(SetJournalTest, a_journal_that_was_cut_off_removes_nothing) {
  leave_dead_journal(/*committed=*/true);
  std::filesystem::resize_file(directory / kJournal, std::filesystem::file_size(directory / kJournal) - 1);
  recover();
  EXPECT_THAT(directory.names(), ElementsAre("bystander", kIndex, kNew, kOld));
}

TEST_F(SetJournalTest, what_is_no_file_in_its_place_is_refused_and_left) {
  ASSERT_EQ(::mkfifo((directory / kJournal).c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] { recover(); }), HasSubstr(".m.safetensors.saving is not a regular file"));
  EXPECT_THAT(directory.names(), ElementsAre(kJournal));
  std::filesystem::remove(directory / kJournal);
  std::filesystem::create_symlink("bystander", directory / kJournal);
  EXPECT_THAT(message_of([&] { recover(); }), HasSubstr("cannot open .m.safetensors.saving"));
  EXPECT_THAT(directory.names(), ElementsAre(kJournal));
}

TEST_F(SetJournalTest, a_missing_directory_is_named) {
  EXPECT_THAT(message_of([&] { const SetJournal journal(directory / "nowhere" / "m.safetensors"); }),
              HasSubstr("nowhere"));
}

}  // namespace
}  // namespace penstock
