#include "io/names.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "testing/files.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using testing::TempDir;

UniqueFd open_directory(const TempDir& directory) {
  return UniqueFd(::open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

bool is_model(std::string_view target) {
  return target == "model";
}

TEST(NamesTest, a_temporary_name_is_hidden_and_says_what_it_is_for) {
  const std::string name = temporary_name("model.safetensors");
  EXPECT_EQ(name.front(), '.');
  EXPECT_EQ(target_of_temporary(name), "model.safetensors");
  EXPECT_NE(name, temporary_name("model.safetensors"));
}

TEST(NamesTest, the_temporary_name_of_a_long_name_fits) {
  const std::string name = temporary_name(std::string(255, 'n'));
  EXPECT_LE(name.size(), 255u);
  EXPECT_EQ(target_of_temporary(name), std::string(kMaxStem, 'n'));
}

TEST(NamesTest, other_names_are_no_temporaries) {
  for (const char* name : {"", ".tmp", ".model.tmp", "model.0123456789abcdef.tmp", ".model.0123456789abcdeF.tmp",
                           ".model.0123456789abcde.tmp", ".model.0123456789abcdef.tmp~", "..0123456789abcdef.tmp.",
                           ".0123456789abcdef.tmp"}) {
    EXPECT_EQ(target_of_temporary(name), "") << name;
  }
}

TEST(NamesTest, a_temporary_that_nobody_holds_is_removed_and_no_other_file) {
  const TempDir directory;
  const UniqueFd folder = open_directory(directory);
  const std::string held = temporary_name("model");
  testing::write_file(directory / temporary_name("model"), "dead");
  testing::write_file(directory / held, "held");
  testing::write_file(directory / ".model.tmp", "of somebody else");
  testing::write_file(directory / temporary_name("other"), "of another target");
  UniqueFd writer(::open((directory / held).c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(mark_in_use(writer.get()));
  remove_dead_temporaries(folder.get(), is_model);
  EXPECT_THAT(directory.names(), ::testing::UnorderedElementsAre(held, ".model.tmp"));
  mark_done(writer.get());
  EXPECT_THAT(remove_dead_temporaries(folder.get(), is_model), ElementsAre(held));
  EXPECT_THAT(directory.names(), ElementsAre(".model.tmp"));
}

TEST(NamesTest, a_link_or_a_directory_that_is_called_like_a_temporary_stays) {
  const TempDir directory;
  testing::write_file(directory / "file", "target");
  std::filesystem::create_symlink("file", directory / temporary_name("model"));
  std::filesystem::create_directory(directory / temporary_name("model"));
  remove_dead_temporaries(open_directory(directory).get(), is_model);
  EXPECT_EQ(directory.names().size(), 3u);
}

TEST(NamesTest, a_file_is_found_by_its_name_until_it_is_another_or_written_to) {
  const TempDir directory;
  const UniqueFd folder = open_directory(directory);
  EXPECT_EQ(find_name(folder.get(), "file"), std::nullopt);
  testing::write_file(directory / "file", "a");
  const auto first = find_name(folder.get(), "file");
  ASSERT_TRUE(first);
  EXPECT_EQ(find_name(folder.get(), "file"), first);
  const timespec times[] = {{0, UTIME_OMIT}, {1000, 5}};
  ASSERT_EQ(::utimensat(folder.get(), "file", times, 0), 0);
  const auto touched = find_name(folder.get(), "file");
  EXPECT_NE(touched, first);
  EXPECT_EQ(touched->modified_nanoseconds, 1'000'000'000'005);
  testing::write_file(directory / "new", "b");
  std::filesystem::rename(directory / "new", directory / "file");
  EXPECT_NE(find_name(folder.get(), "file"), touched);
  std::filesystem::create_directory(directory / "folder");
  EXPECT_EQ(find_name(folder.get(), "folder"), std::nullopt);
}

TEST(NamesTest, a_name_is_removed_once_and_a_directory_never) {
  const TempDir directory;
  const UniqueFd folder = open_directory(directory);
  testing::write_file(directory / "file", "a");
  std::filesystem::create_directory(directory / "folder");
  EXPECT_TRUE(remove_name(folder.get(), "file"));
  EXPECT_FALSE(remove_name(folder.get(), "file"));
  EXPECT_FALSE(remove_name(folder.get(), "folder"));
  EXPECT_THAT(directory.names(), ElementsAre("folder"));
}

}  // namespace
}  // namespace penstock
