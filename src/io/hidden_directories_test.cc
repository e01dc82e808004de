#include "io/hidden_directories.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include "testing/files.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using testing::TempDir;

struct HiddenDirectoriesTest : ::testing::Test {
  // With a file in it.
  std::string make(const std::string& name) {
    std::filesystem::create_directory(directory / name);
    testing::write_file(directory / name / "file", name);
    return name;
  }
  std::vector<DeadDirectory> remove_dead(std::string_view target = "step") {
    return remove_dead_directories(parent.get(), [&](std::string_view name) { return name == target; });
  }

  TempDir directory;
  UniqueFd parent{::open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
};

TEST_F(HiddenDirectoriesTest, a_name_says_what_it_is_for) {
  for (const char* why : {"saving", "replaced", "removing"}) {
    EXPECT_EQ(target_of_hidden_directory(hidden_directory_name("step.1", why)), "step.1") << why;
  }
  EXPECT_NE(hidden_directory_name("step", "saving"), hidden_directory_name("step", "saving"));
}

TEST_F(HiddenDirectoriesTest, other_names_are_none) {
  for (const char* name :
       {"", ".saving-0123456789abcdef", ".step.saving", ".step.saved-0123456789abcdef", "step.saving-0123456789abcdef",
        ".step.saving-0123456789abcdeF", ".stepsaving-0123456789abcdef", ".step.saving_0123456789abcdef"}) {
    EXPECT_EQ(target_of_hidden_directory(name), "") << name;
  }
}

TEST_F(HiddenDirectoriesTest, what_nobody_holds_is_removed_and_nothing_else) {
  const std::string held = make(hidden_directory_name("step", "saving"));
  const std::string other = make(hidden_directory_name("other", "saving"));
  const std::string dead = make(hidden_directory_name("step", "saving"));
  make("step");
  const UniqueFd lock = hold_directory(parent.get(), held);
  ASSERT_TRUE(lock);
  const auto gone = remove_dead();
  ASSERT_EQ(gone.size(), 1u);
  EXPECT_EQ(gone[0].name, dead);
  EXPECT_FALSE(gone[0].restored);
  EXPECT_THAT(directory.names(), ::testing::UnorderedElementsAre(held, other, "step"));
}

TEST_F(HiddenDirectoriesTest, what_was_put_aside_gets_its_name_back_unless_another_has_it) {
  make(hidden_directory_name("step", "replaced"));
  EXPECT_TRUE(remove_dead().at(0).restored);
  EXPECT_THAT(directory.names(), ElementsAre("step"));
  make(hidden_directory_name("step", "replaced"));
  EXPECT_FALSE(remove_dead().at(0).restored);
  EXPECT_THAT(directory.names(), ElementsAre("step"));
}

TEST_F(HiddenDirectoriesTest, files_and_links_of_such_names_stay) {
  testing::write_file(directory / hidden_directory_name("step", "saving"), "");
  std::filesystem::create_directory_symlink(".", directory / hidden_directory_name("step", "removing"));
  EXPECT_TRUE(remove_dead().empty());
  EXPECT_EQ(directory.names().size(), 2u);
}

TEST_F(HiddenDirectoriesTest, what_is_being_removed_can_not_be_held) {
  const std::string name = make(hidden_directory_name("step", "saving"));
  const UniqueFd remover(::open((directory / name).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(remover.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_FALSE(hold_directory(parent.get(), name));
}

}  // namespace
}  // namespace penstock
