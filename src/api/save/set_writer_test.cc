// Files that are written one after the other and appear as one checkpoint.
#include "penstock/set_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "penstock/reader.h"
#include "testing/errors.h"
#include "testing/files.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;

class SetWriterTest : public ::testing::Test {
 protected:
  // Adds a file with one tensor of bytes `value`.
  void add(SetWriter& set, const std::string& tensor, int value) const {
    const std::vector<std::byte> bytes(1000, static_cast<std::byte>(value));
    Writer writer(path_);
    writer.add(tensor, DType::kU8, {1000}, bytes.data());
    set.add(std::move(writer));
  }

  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(directory_.path())) found.push_back(entry.path().filename());
    std::sort(found.begin(), found.end());
    return found;
  }

  int value_of(const std::string& tensor) const {
    const fs::path index = path_.native() + ".index.json";
    const Reader reader(fs::exists(index) ? index : path_);
    return std::to_integer<int>(reader.load_slice(tensor, {}).bytes[999]);
  }

  const testing::TempDir directory_;
  const fs::path path_ = directory_ / "model.safetensors";
};

TEST_F(SetWriterTest, nothing_is_there_before_it_is_published_and_all_of_it_then) {
  SetWriter set(path_);
  add(set, "a", 1);
  add(set, "b", 2);
  EXPECT_EQ(set.count(), 2u);
  EXPECT_THAT(names(), IsEmpty());
  const auto paths = set.publish({{"total_parameters", "7"}, {"note", "\"x\""}, {"total_size", "3"}});
  EXPECT_THAT(paths, ElementsAre(directory_ / "model-00001-of-00002.safetensors",
                                 directory_ / "model-00002-of-00002.safetensors"));
  EXPECT_THAT(names(), ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                   "model.safetensors.index.json"));
  EXPECT_EQ(value_of("a"), 1);
  EXPECT_EQ(value_of("b"), 2);
  std::ifstream file(path_.native() + ".index.json");
  const std::string index{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(index, HasSubstr("\"note\": \"x\",\n    \"total_parameters\": 7,\n    \"total_size\": 2000"));
}

TEST_F(SetWriterTest, a_set_that_is_given_up_leaves_nothing) {
  {
    SetWriter set(path_);
    add(set, "a", 1);
  }
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(SetWriterTest, takes_the_place_of_a_set_and_of_a_single_file) {
  const auto save = [&](int count, int value) {
    SetWriter set(path_);
    for (int i = 0; i < count; ++i) add(set, std::string(1, static_cast<char>('a' + i)), value);
    set.publish();
  };
  save(2, 1);
  save(2, 2);
  EXPECT_THAT(names(), ElementsAre("model-g2-00001-of-00002.safetensors", "model-g2-00002-of-00002.safetensors",
                                   "model.safetensors.index.json"));
  EXPECT_EQ(value_of("b"), 2);
  save(1, 3);
  EXPECT_THAT(names(), ElementsAre("model.safetensors"));
  EXPECT_EQ(value_of("a"), 3);
  save(3, 4);
  EXPECT_EQ(value_of("c"), 4);
  EXPECT_EQ(names().size(), 4u);
}

TEST_F(SetWriterTest, a_tensor_in_two_files_is_refused) {
  SetWriter set(path_);
  add(set, "a", 1);
  add(set, "a", 2);
  EXPECT_EQ(message_of([&] { set.publish(); }), path_.native() + ": tensor \"a\" is in two files");
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(SetWriterTest, empty_sets_and_files_that_would_be_split_are_refused) {
  SetWriter set(path_);
  EXPECT_EQ(message_of([&] { set.publish(); }), path_.native() + ": a set of no files");
  SaveOptions options;
  options.max_shard_size = 10;
  Writer writer(path_, options);
  EXPECT_EQ(message_of([&] { set.add(std::move(writer)); }), path_.native() + ": a file of a set is not split");
}

TEST_F(SetWriterTest, a_file_that_fails_leaves_the_set_as_it_was) {
  SetWriter set(path_);
  add(set, "a", 1);
  Writer writer(path_);
  writer.add("b", DType::kU8, {1000}, [](std::uint64_t, std::span<std::byte>) { throw std::runtime_error("no"); });
  EXPECT_ANY_THROW(set.add(std::move(writer)));
  set.publish();
  EXPECT_THAT(names(), ElementsAre("model.safetensors"));
}

}  // namespace
}  // namespace penstock
