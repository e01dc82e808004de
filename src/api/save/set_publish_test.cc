// Sets that take the place of others, killed at every step and disturbed in other ways.
#include "api/save/set_publish.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <map>
#include <string>

#include "api/save/save.h"
#include "api/save/set_files.h"
#include "penstock/reader.h"
#include "testing/errors.h"
#include "testing/files.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TempDir;

using Hook = std::function<void(std::string_view)>;

constexpr std::size_t kTensor = 1000;
constexpr const char* kName = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// A checkpoint of which every byte says which it is: `value`, in `count` shards of one tensor each, or 1 for a file.
struct Version {
  int value = 1;  // of a byte
  int count = 3;
};

void save_version(const fs::path& directory, Version version, bool durable = true, const Hook& after_step = {}) {
  const std::vector<std::byte> bytes(kTensor * static_cast<std::size_t>(version.count),
                                     static_cast<std::byte>(version.value));
  SaveOptions options;
  options.durable = durable;
  options.max_shard_size = version.count > 1 ? kTensor : 0;
  Writer writer(directory / kName, options);
  for (int i = 0; i < version.count; ++i) {
    writer.add("t" + std::to_string(i), DType::kU8, {kTensor}, bytes.data() + kTensor * static_cast<std::size_t>(i));
  }
  Save steps(WriterAccess::state(writer));
  steps.watch_steps(after_step);
  steps.prepare();
  steps.write();
  steps.publish();
}

// A set by others: names without a rule, in an index by hand.
void save_foreign(const fs::path& directory, Version version) {
  std::string map;
  for (int i = 0; i < version.count; ++i) {
    const std::string part = "part_" + std::to_string(i) + ".safetensors";
    Writer writer(directory / part);
    const std::vector<std::byte> bytes(kTensor, static_cast<std::byte>(version.value));
    const std::string name = "t" + std::to_string(i);
    writer.add(name, DType::kU8, {kTensor}, bytes.data());
    writer.commit();
    map += (map.empty() ? "\"" : ", \"") + name + "\": \"" + part + "\"";
  }
  testing::write_file(directory / kIndex, "{\"weight_map\": {" + map + "}}");
}

// The value of the checkpoint that is there; fails when it is not whole, or there is none. 0 for none.
int value_in(const fs::path& path) {
  try {
    const Reader reader(path);
    if (reader.tensors().empty()) return 0;
    int value = -1;
    for (const TensorInfo& tensor : reader.tensors()) {
      const auto loaded = reader.load_slice(tensor.name, {});
      for (std::size_t i = 0; i < kTensor; ++i) {
        const int byte = loaded.data<std::uint8_t>()[i];
        if (value < 0) value = byte;
        if (byte == value) continue;
        ADD_FAILURE() << path << " is a mixture of " << value << " and " << byte;
        return -1;
      }
    }
    return value;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kNotFound) ADD_FAILURE() << error.what();
    return 0;
  }
}

std::size_t count_in(const fs::path& path) {
  return Reader(path).tensors().size();
}

// What transformers open of a directory: the single file when there is one, else the index.
fs::path choice_of_others(const fs::path& directory) {
  return directory / (fs::exists(directory / kName) ? kName : kIndex);
}

// Nothing is there but the checkpoint, and bystanders.
void expect_alone(const TempDir& directory, Version version, std::vector<std::string> expected = {}) {
  if (version.count == 1) {
    expected.emplace_back(kName);
  } else {
    const auto listed = read_index_files(directory / kIndex);
    ASSERT_TRUE(listed);
    expected.insert(expected.end(), listed->begin(), listed->end());
    EXPECT_EQ(expected.size(), static_cast<std::size_t>(version.count));
    expected.emplace_back(kIndex);
  }
  EXPECT_THAT(directory.names(), ::testing::UnorderedElementsAreArray(expected));
  EXPECT_EQ(value_in(directory.path()), version.value);
  EXPECT_EQ(value_in(choice_of_others(directory.path())), version.value);
  EXPECT_EQ(count_in(directory.path()), static_cast<std::size_t>(version.count));
}

// Runs it in a process that is killed after the step of this number. The step's name; empty when it ended before.
std::string run_and_kill(int number, const std::function<void(const Hook&)>& action) {
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    int step = 0;
    action([&](std::string_view name) {
      if (step++ != number) return;
      [[maybe_unused]] const auto written = ::write(pipe[1], name.data(), name.size());
      ::kill(::getpid(), SIGKILL);
    });
    ::_exit(0);
  }
  ::close(pipe[1]);
  std::string name(100, '\0');
  const ssize_t length = ::read(pipe[0], name.data(), name.size());
  ::close(pipe[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
  name.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return name;
}

struct Old {
  const char* name;
  std::function<void(const fs::path&)> make;
  Version version;  // of the value 0 where there is none
};

std::vector<Old> old_checkpoints() {
  const Version three{1, 3};
  const Version two{1, 2};
  const Version single{1, 1};
  return {
      {"nothing", [](const fs::path&) {}, {0, 0}},
      {"as_many_shards", [=](const fs::path& path) { save_version(path, three); }, three},
      {"fewer_shards", [=](const fs::path& path) { save_version(path, two); }, two},
      {"a_later_generation",
       [=](const fs::path& path) {
         save_version(path, two);
         save_version(path, three);
       },
       three},
      {"a_single_file", [=](const fs::path& path) { save_version(path, single); }, single},
      {"shards_of_others", [=](const fs::path& path) { save_foreign(path, three); }, three},
  };
}

using KillCase = std::tuple<std::size_t, int, bool>;  // which old checkpoint, shards of the new one, durable

class KilledSaveTest : public ::testing::TestWithParam<KillCase> {};

TEST_P(KilledSaveTest, leaves_the_old_checkpoint_or_the_new_one_and_nothing_after_the_next_save) {
  const Old old = old_checkpoints()[std::get<0>(GetParam())];
  const int count = std::get<1>(GetParam());
  const bool durable = std::get<2>(GetParam());
  const Version fresh{2, count};
  std::map<std::string, std::pair<int, int>> seen;  // step -> what is there for penstock, and for others
  for (const Version next : {Version{3, 2}, Version{3, 1}}) {
    for (int number = 0;; ++number) {
      const TempDir directory;
      testing::write_file(directory / "config.json", "{}");
      old.make(directory.path());
      const std::string step =
          run_and_kill(number, [&](const Hook& hook) { save_version(directory.path(), fresh, durable, hook); });
      SCOPED_TRACE(step);
      const int ours = value_in(directory.path());
      const int theirs = value_in(choice_of_others(directory.path()));
      for (const int value : {ours, theirs}) EXPECT_TRUE(value == old.version.value || value == fresh.value) << value;
      seen[step] = {ours, theirs};
      // Whole: a part of a set would have fewer.
      if (ours != 0) {
        const int expected = ours == fresh.value ? fresh.count : old.version.count;
        EXPECT_EQ(count_in(directory.path()), static_cast<std::size_t>(expected));
      }
      if (theirs != 0) {
        const int expected = theirs == fresh.value ? fresh.count : old.version.count;
        EXPECT_EQ(count_in(choice_of_others(directory.path())), static_cast<std::size_t>(expected));
      }
      save_version(directory.path(), next, durable);
      fs::remove(directory / "config.json");
      expect_alone(directory, next);
      if (step.empty()) break;
      ASSERT_LT(number, 30);
    }
  }
  const std::pair none_or_old(old.version.value, old.version.value);
  const std::pair both_new(2, 2);
  EXPECT_EQ(seen[""], both_new);
  if (count > 1) {
    EXPECT_EQ(seen["recorded"], none_or_old);
    EXPECT_EQ(seen["shard named"], none_or_old);
    // A single file hides the index from others until it goes.
    EXPECT_EQ(seen["committed"].first, 2);
    EXPECT_EQ(seen["committed"].second, old.version.count == 1 ? 1 : 2);
    EXPECT_EQ(seen["old files removed"], both_new);
  } else {
    EXPECT_EQ(seen["file named"].second, 2);
  }
}

std::string name_of(const ::testing::TestParamInfo<KillCase>& info) {
  const auto [which, count, durable] = info.param;
  return std::string(old_checkpoints()[which].name) + "_then_" + std::to_string(count) + (durable ? "_durable" : "");
}

INSTANTIATE_TEST_SUITE_P(Cases, KilledSaveTest,
                         ::testing::Combine(::testing::Range<std::size_t>(0, 6), ::testing::Values(1, 3),
                                            ::testing::Bool()),
                         name_of);

// Files as they are where a filesystem has no unnamed ones.
TEST(SetPublishTest, hidden_files_of_a_killed_save_go_with_the_next) {
  for (int number = 0;; ++number) {
    const TempDir directory;
    save_version(directory.path(), {1, 2});
    const std::string step = run_and_kill(number, [&](const Hook& hook) {
      NewFile first = NewFile::create_named(directory / "model-00001-of-00002.safetensors");
      NewFile second = NewFile::create_named(directory / "model-00002-of-00002.safetensors");
      NewFile index_file = NewFile::create_named(directory / kIndex);
      ShardIndex index{{"", ""}, {{"t0", 0}, {"t1", 1}}, {}};
      NewFile* const files[] = {&first, &second};
      for (NewFile* file : files) file->finish(0, /*durable=*/true);
      publish_shards({directory / kName, true, {}, hook}, files, index, index_file, 0);
    });
    SCOPED_TRACE(step);
    // Two shards and three hidden ones, an index, a journal.
    if (step == "recorded") {
      EXPECT_EQ(directory.names().size(), 7u);
    }
    save_version(directory.path(), {3, 2});
    expect_alone(directory, {3, 2});
    if (step.empty()) break;
    ASSERT_LT(number, 30);
  }
}

// Steps of one save, in their order, and nothing else.
std::vector<std::string> steps_of(const fs::path& directory, Version version) {
  std::vector<std::string> steps;
  save_version(directory, version, /*durable=*/true, [&](std::string_view name) { steps.emplace_back(name); });
  return steps;
}

TEST(SetPublishTest, steps_are_those_of_the_protocol) {
  const TempDir directory;
  EXPECT_THAT(steps_of(directory.path(), {1, 1}), ElementsAre("file named", "file durable"));
  EXPECT_THAT(steps_of(directory.path(), {2, 2}),
              ElementsAre("locked", "recorded", "shard named", "shard named", "shards durable", "committed",
                          "index durable", "old files removed"));
  EXPECT_THAT(steps_of(directory.path(), {3, 1}), ElementsAre("locked", "recorded", "file named", "file durable",
                                                              "index replaced", "old shards removed", "index removed"));
}

TEST(SetPublishTest, a_set_over_a_set_has_names_of_its_own) {
  const TempDir directory;
  save_version(directory.path(), {1, 2});
  EXPECT_THAT(directory.names(),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", kIndex));
  save_version(directory.path(), {2, 2});
  EXPECT_THAT(directory.names(),
              ElementsAre("model-g2-00001-of-00002.safetensors", "model-g2-00002-of-00002.safetensors", kIndex));
  save_version(directory.path(), {3, 3});
  EXPECT_THAT(directory.names(),
              ElementsAre("model-g3-00001-of-00003.safetensors", "model-g3-00002-of-00003.safetensors",
                          "model-g3-00003-of-00003.safetensors", kIndex));
}

TEST(SetPublishTest, a_reader_of_the_old_set_keeps_its_files) {
  const TempDir directory;
  save_version(directory.path(), {1, 3});
  const Reader old(directory.path());
  save_version(directory.path(), {2, 3});
  save_version(directory.path(), {3, 1});
  for (const TensorInfo& tensor : old.tensors()) {
    EXPECT_EQ(old.load_slice(tensor.name, {}).data<std::uint8_t>()[kTensor - 1], 1) << tensor.name;
  }
  EXPECT_EQ(value_in(directory.path()), 3);
}

TEST(SetPublishTest, a_name_that_is_in_the_way_is_passed_over_and_left) {
  const TempDir directory;
  testing::write_file(directory / "model-00002-of-00002.safetensors", "mine");
  save_version(directory.path(), {1, 2});
  EXPECT_TRUE(fs::exists(directory / "model-g2-00001-of-00002.safetensors"));
  EXPECT_EQ(testing::read_file(directory / "model-00002-of-00002.safetensors").size(), 4u);
}

TEST(SetPublishTest, an_index_that_lists_other_kinds_of_files_does_not_take_them_along) {
  const TempDir directory;
  testing::write_file(directory / "config.json", "{}");
  testing::write_file(directory / kIndex, R"({"weight_map": {"a": "config.json"}})");
  save_version(directory.path(), {1, 2});
  EXPECT_TRUE(fs::exists(directory / "config.json"));
  EXPECT_EQ(value_in(directory.path()), 1);
}

TEST(SetPublishTest, files_that_another_set_lists_stay) {
  const TempDir directory;
  save_version(directory.path(), {1, 3});
  testing::write_file(directory / "other.safetensors.index.json",
                      R"({"weight_map": {"t1": "model-00002-of-00003.safetensors", "t2": "model.safetensors"}})");
  save_version(directory.path(), {2, 2});
  EXPECT_FALSE(fs::exists(directory / "model-00001-of-00003.safetensors"));
  EXPECT_TRUE(fs::exists(directory / "model-00002-of-00003.safetensors"));
  save_version(directory.path(), {3, 1});
  save_version(directory.path(), {4, 2});
  EXPECT_EQ(value_in(directory / kIndex), 4);
  EXPECT_TRUE(fs::exists(directory / kName));
}

TEST(SetPublishTest, names_that_are_too_long_are_refused) {
  const TempDir directory;
  const auto save = [&](std::size_t length) {
    const std::string name = std::string(length - 12, 'm') + ".safetensors";
    const std::vector<std::byte> bytes(2 * kTensor);
    SaveOptions options;
    options.max_shard_size = kTensor;
    Writer writer(directory / name, options);
    writer.add("a", DType::kU8, {kTensor}, bytes.data());
    writer.add("b", DType::kU8, {kTensor}, bytes.data() + kTensor);
    writer.commit();
  };
  save(240);
  const auto before = directory.names();
  // Names of the second generation are longer.
  EXPECT_THAT(message_of([&] { save(240); }), HasSubstr("File name too long"));
  EXPECT_THAT(message_of([&] { save(241); }), HasSubstr("File name too long"));
  EXPECT_EQ(directory.names(), before);
}

// Until the file may be removed.
TEST(SetPublishTest, old_shards_that_can_not_be_removed_are_left_to_the_next_save) {
  for (const int count : {2, 1}) {
    const TempDir directory;
    save_version(directory.path(), {1, 2});
    const UniqueFd shard(::open((directory / "model-00001-of-00002.safetensors").c_str(), O_RDONLY | O_CLOEXEC));
    int flags = 0;
    int immutable = FS_IMMUTABLE_FL;
    if (::ioctl(shard.get(), FS_IOC_GETFLAGS, &flags) != 0 || ::ioctl(shard.get(), FS_IOC_SETFLAGS, &immutable) != 0) {
      GTEST_SKIP() << "files can't be made immutable here";
    }
    save_version(directory.path(), {2, count});
    EXPECT_EQ(value_in(directory.path()), 2);
    EXPECT_EQ(value_in(choice_of_others(directory.path())), 2);
    EXPECT_TRUE(fs::exists(directory / "model-00001-of-00002.safetensors"));
    ASSERT_EQ(::ioctl(shard.get(), FS_IOC_SETFLAGS, &flags), 0);
    save_version(directory.path(), {3, 2});
    expect_alone(directory, {3, 2});
  }
}

TEST(SetPublishTest, an_index_that_nobody_can_read_is_replaced_and_its_shards_are_not_guessed) {
  const TempDir directory;
  save_version(directory.path(), {1, 2});
  testing::write_file(directory / kIndex, "{\"weight_map\": {\"t0\": \"model-0");
  save_version(directory.path(), {2, 2});
  EXPECT_EQ(value_in(directory.path()), 2);
  EXPECT_TRUE(fs::exists(directory / "model-00001-of-00002.safetensors"));
}

TEST(SetPublishTest, links_are_replaced_and_what_they_lead_to_stays) {
  const TempDir cache;
  save_version(cache.path(), {1, 2});
  for (const Version fresh : {Version{2, 2}, Version{2, 1}}) {
    const TempDir directory;
    for (const std::string& name : cache.names()) fs::create_symlink(cache / name, directory / name);
    EXPECT_EQ(value_in(directory.path()), 1);
    save_version(directory.path(), fresh);
    expect_alone(directory, fresh);
    for (const std::string& name : directory.names()) EXPECT_FALSE(fs::is_symlink(directory / name)) << name;
    EXPECT_EQ(value_in(cache.path()), 1);
  }
}

TEST(SetPublishTest, new_shards_have_the_mode_of_the_old) {
  const TempDir directory;
  for (const int value : {1, 2, 3}) {
    save_version(directory.path(), {value, 2});
    for (const std::string& name : directory.names()) {
      struct stat status {};
      ASSERT_EQ(::stat((directory / name).c_str(), &status), 0);
      if (value > 1) {
        EXPECT_EQ(status.st_mode & 07777, 0604u) << name;
      }
      ASSERT_EQ(::chmod((directory / name).c_str(), 0604), 0);
    }
  }
}

// At the index: a directory has its name.
TEST(SetPublishTest, a_set_whose_index_can_not_be_named_is_withdrawn) {
  const TempDir directory;
  const auto block = [&](std::string_view step) {
    if (step == "shards durable") fs::create_directory(directory / kIndex);
  };
  EXPECT_THAT(message_of([&] { save_version(directory.path(), {1, 2}, true, block); }), HasSubstr("Is a directory"));
  EXPECT_THAT(directory.names(), ElementsAre(kIndex));
}

TEST(SetPublishTest, a_shard_whose_name_was_taken_meanwhile_withdraws_the_set) {
  const TempDir directory;
  save_version(directory.path(), {1, 2});
  const auto before = directory.names();
  const auto block = [&](std::string_view step) {
    if (step == "recorded") testing::write_file(directory / "model-g2-00002-of-00002.safetensors", "mine");
  };
  EXPECT_THAT(message_of([&] { save_version(directory.path(), {2, 2}, true, block); }), HasSubstr("File exists"));
  fs::remove(directory / "model-g2-00002-of-00002.safetensors");
  EXPECT_EQ(directory.names(), before);
  EXPECT_EQ(value_in(directory.path()), 1);
}

TEST(SetPublishTest, a_single_file_that_fails_over_a_set_leaves_the_set) {
  const TempDir directory;
  save_version(directory.path(), {1, 2});
  const auto before = directory.names();
  const auto block = [&](std::string_view step) {
    if (step == "recorded") fs::create_directory(directory / kName);
  };
  EXPECT_THAT(message_of([&] { save_version(directory.path(), {2, 1}, true, block); }), HasSubstr("Is a directory"));
  fs::remove(directory / kName);
  EXPECT_EQ(directory.names(), before);
  EXPECT_EQ(value_in(directory.path()), 1);
}

// A limit on the size of files stands in for a full disk: at every size something else fails, the index or the journal.
TEST(SetPublishTest, a_full_disk_at_any_step_leaves_the_old_set) {
  const TempDir directory;
  save_version(directory.path(), {1, 2});
  const auto before = directory.names();
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  int failed = 0;
  for (rlim_t nbytes = 16; nbytes < 6000; nbytes += 64) {
    const rlimit limit{nbytes, old.rlim_max};
    // Shards of many are larger than limits only after the index and the journal are.
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string message;
    try {
      save_version(directory.path(), {2, 40});
    } catch (const Error& error) {
      message = error.what();
    }
    ::setrlimit(RLIMIT_FSIZE, &old);
    if (message.empty()) break;
    ++failed;
    EXPECT_THAT(message, HasSubstr("File too large"));
    EXPECT_EQ(directory.names(), before) << message;
    EXPECT_EQ(value_in(directory.path()), 1);
  }
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_GT(failed, 20);
  expect_alone(directory, {2, 40});
}

TEST(SetPublishTest, a_directory_that_can_not_be_written_to_is_named_and_left) {
  const TempDir directory;
  save_version(directory.path(), {1, 2});
  const auto before = directory.names();
  ASSERT_EQ(::chmod(directory.path().c_str(), 0555), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::getuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
    try {
      save_version(directory.path(), {2, 2});
    } catch (const Error& error) {
      ::_exit(std::string(error.what()).find("Permission denied") != std::string::npos ? 0 : 1);
    }
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(directory.names(), before);
  EXPECT_EQ(value_in(directory.path()), 1);
  ASSERT_EQ(::chmod(directory.path().c_str(), 0755), 0);
}

// Between the name of the single file and the look for a set.
TEST(SetPublishTest, a_set_that_took_the_place_of_a_single_file_at_once_is_kept) {
  const TempDir directory;
  const auto meanwhile = [&](std::string_view step) {
    if (step == "file durable") save_version(directory.path(), {2, 2});
  };
  save_version(directory.path(), {1, 1}, true, meanwhile);
  expect_alone(directory, {2, 2});
}

// The same, but the set had looked for a single file before there was one.
TEST(SetPublishTest, a_single_file_takes_the_place_of_a_set_that_appeared_meanwhile) {
  const TempDir directory;
  const auto meanwhile = [&](std::string_view step) {
    if (step != "file named") return;
    fs::rename(directory / kName, directory / "aside");
    save_version(directory.path(), {2, 2});
    fs::rename(directory / "aside", directory / kName);
  };
  save_version(directory.path(), {1, 1}, true, meanwhile);
  expect_alone(directory, {1, 1});
}

TEST(SetPublishTest, savers_at_one_time_and_readers_meanwhile_see_whole_checkpoints) {
  const TempDir directory;
  save_version(directory.path(), {1, 3});
  std::vector<pid_t> savers;
  for (const int value : {2, 3}) {
    savers.push_back(::fork());
    if (savers.back() != 0) continue;
    for (int round = 0; round < 60; ++round) {
      save_version(directory.path(), {value, 1 + (round + value) % 3}, /*durable=*/false);
    }
    ::_exit(0);
  }
  std::size_t reads = 0;
  for (std::size_t running = savers.size(); running > 0;) {
    EXPECT_GT(value_in(directory.path()), 0);
    ++reads;
    int status = 0;
    if (::waitpid(-1, &status, WNOHANG) <= 0) continue;
    EXPECT_EQ(status, 0);
    --running;
  }
  EXPECT_GT(reads, 0u);
  save_version(directory.path(), {4, 2});
  expect_alone(directory, {4, 2});
}

}  // namespace
}  // namespace penstock
