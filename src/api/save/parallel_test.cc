// Parallel saves, with the processes played by several savers of one process.
#include "penstock/parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "penstock/convert.h"
#include "penstock/error.h"
#include "testing/files.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempDir;

class ParallelSaveTest : public ::testing::TestWithParam<const char*> {
 protected:
  // Tensors that span shares, lie within one, and fill no page.
  Writer make_writer(const std::filesystem::path& path, SaveOptions options = {}) const {
    options.format = GetParam();
    Writer writer(path, options);
    writer.add("large", DType::kU8, {static_cast<std::int64_t>(large_.size())}, large_.data());
    writer.add("medium", DType::kF32, {1000, 100}, medium_.data());
    writer.add("tiny", DType::kU8, {5}, large_.data() + 3);
    writer.add("empty", DType::kF32, {0, 7}, nullptr);
    return writer;
  }

  SaveOptions shared() const {
    SaveOptions options;
    options.shared = SharedTensors::kDuplicate;
    return options;
  }

  // Saves by `count` savers, to `path`.
  void save(const std::filesystem::path& path, unsigned count, const SaveOptions& options) const {
    std::vector<ParallelSave> savers;
    for (unsigned i = 0; i < count; ++i) savers.emplace_back(make_writer(path, options));
    const std::string name = savers.front().create();
    std::vector<ShareChecksum> checksums;
    for (unsigned i = 0; i < count; ++i) {
      EXPECT_EQ(savers[i].fingerprint(), savers.front().fingerprint());
      if (i > 0) savers[i].join(name);
      for (const ShareChecksum& share : savers[i].write(i, count)) checksums.push_back(share);
    }
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_EQ(savers.front().commit(checksums).tensors, 4U);
  }

  const std::vector<std::byte> large_ = testing::random_bytes(9 * kMiB + 4321, 1);
  const std::vector<std::byte> medium_ = testing::random_bytes(400'000, 2);
  TempDir directory_;
};

TEST_P(ParallelSaveTest, any_number_of_savers_make_the_file_that_one_makes) {
  make_writer(directory_ / "alone.x", shared()).commit();
  const auto expected = testing::read_file(directory_ / "alone.x");
  for (const unsigned count : {1U, 2U, 3U, 7U, 40U}) {
    std::filesystem::create_directory(directory_ / std::to_string(count));
    const auto path = directory_ / std::to_string(count) / "alone.x";
    save(path, count, shared());
    EXPECT_EQ(testing::read_file(path), expected) << count;
    EXPECT_TRUE(verify(path).ok);
  }
}

TEST_P(ParallelSaveTest, an_abandoned_save_leaves_the_old_file_and_nothing_else) {
  const auto path = directory_ / "m.x";
  testing::write_file(path, "old");
  {
    ParallelSave first(make_writer(path, shared()));
    ParallelSave second(make_writer(path, shared()));
    second.join(first.create());
    first.write(0, 2);
    EXPECT_EQ(directory_.names().size(), 2U);
  }
  EXPECT_THAT(directory_.names(), ElementsAre("m.x"));
  EXPECT_EQ(testing::read_file(path).size(), 3U);
}

TEST_P(ParallelSaveTest, other_shapes_and_names_give_another_fingerprint) {
  const ParallelSave one(make_writer(directory_ / "m.x", shared()));
  Writer other = make_writer(directory_ / "m.x", shared());
  other.add("more", DType::kU8, {1}, large_.data());
  EXPECT_NE(ParallelSave(std::move(other)).fingerprint(), one.fingerprint());
}

TEST_P(ParallelSaveTest, steps_out_of_order_are_refused) {
  ParallelSave save(make_writer(directory_ / "m.x", shared()));
  EXPECT_THROW(save.write(0, 1), Error);
  EXPECT_THROW(save.commit({}), Error);
  EXPECT_THROW(save.join("../elsewhere"), Error);
  EXPECT_THROW(save.join("nothing"), Error);
  save.create();
  EXPECT_THROW(save.create(), Error);
  EXPECT_THROW(save.write(2, 2), Error);
}

INSTANTIATE_TEST_SUITE_P(Formats, ParallelSaveTest,
                         ::testing::Values("safetensors", "flashpack", "torch", "torch-legacy"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(ParallelSave, a_share_without_its_checksums_is_refused_and_nothing_appears) {
  const TempDir directory;
  const std::vector<std::byte> bytes(5 * kMiB);
  SaveOptions options;
  options.checksums = true;
  const auto make = [&] {
    Writer writer(directory / "m.safetensors", options);
    writer.add("t", DType::kU8, {static_cast<std::int64_t>(bytes.size())}, bytes.data());
    return writer;
  };
  {
    ParallelSave first(make());
    ParallelSave second(make());
    second.join(first.create());
    const auto checksums = first.write(0, 2);
    second.write(1, 2);
    try {
      first.commit(checksums);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(" bytes checksums came for "));
    }
  }
  EXPECT_TRUE(directory.names().empty());
}

// Tensors of one of several shards, some of which end within a page.
class ParallelShardsTest : public ::testing::Test {
 protected:
  Writer make_writer(const std::filesystem::path& path, SaveOptions options = {}) const {
    options.max_shard_size = 3 * kMiB;
    Writer writer(path, options);
    for (int i = 0; i < 9; ++i) {
      writer.add(std::to_string(i), DType::kU8, {static_cast<std::int64_t>(kMiB) + 77 * i}, bytes_.data() + i * kMiB);
    }
    writer.add("tiny", DType::kU8, {5}, bytes_.data());
    return writer;
  }

  SaveOptions shared() const {
    SaveOptions options;
    options.shared = SharedTensors::kDuplicate;
    return options;
  }

  void save(const std::filesystem::path& path, unsigned count, const SaveOptions& options) const {
    std::vector<ParallelSave> savers;
    for (unsigned i = 0; i < count; ++i) savers.emplace_back(make_writer(path, options));
    const std::string names = savers.front().create();
    std::vector<ShareChecksum> checksums;
    for (unsigned i = 0; i < count; ++i) {
      EXPECT_EQ(savers[i].fingerprint(), savers.front().fingerprint());
      if (i > 0) savers[i].join(names);
      for (const ShareChecksum& share : savers[i].write(i, count)) checksums.push_back(share);
    }
    EXPECT_EQ(savers.front().commit(checksums).tensors, 10U);
  }

  const std::vector<std::byte> bytes_ = testing::random_bytes(11 * kMiB, 3);
  TempDir directory_;
};

TEST_F(ParallelShardsTest, any_number_of_savers_make_the_shards_that_one_makes) {
  for (const bool checksums : {false, true}) {
    SaveOptions options = shared();
    options.checksums = checksums;
    const TempDir alone;
    make_writer(alone / "m.safetensors", options).commit();
    EXPECT_EQ(alone.names().size(), 6U);
    for (const unsigned count : {1U, 2U, 3U, 5U, 40U}) {
      const TempDir together;
      save(together / "m.safetensors", count, options);
      EXPECT_EQ(together.names(), alone.names());
      for (const std::string& name : alone.names()) {
        EXPECT_EQ(testing::read_file(together / name), testing::read_file(alone / name)) << count << " " << name;
      }
    }
  }
}

TEST_F(ParallelShardsTest, take_the_place_of_an_older_set) {
  const auto path = directory_ / "m.safetensors";
  save(path, 2, shared());
  save(path, 3, shared());
  const std::vector<std::string> names = directory_.names();
  EXPECT_EQ(names.size(), 6U);
  EXPECT_THAT(names, ::testing::Contains("m-g2-00001-of-00005.safetensors"));
  EXPECT_TRUE(verify(directory_ / "m.safetensors.index.json").ok);
}

TEST_F(ParallelShardsTest, an_abandoned_save_leaves_the_old_set_and_nothing_else) {
  const auto path = directory_ / "m.safetensors";
  make_writer(path, shared()).commit();
  const std::vector<std::string> names = directory_.names();
  {
    ParallelSave first(make_writer(path, shared()));
    ParallelSave second(make_writer(path, shared()));
    second.join(first.create());
    first.write(0, 2);
    second.write(1, 2);
    EXPECT_EQ(directory_.names().size(), names.size() + 5);
  }
  EXPECT_EQ(directory_.names(), names);
}

TEST_F(ParallelShardsTest, a_saver_of_other_files_can_not_join) {
  const auto path = directory_ / "m.safetensors";
  ParallelSave first(make_writer(path, shared()));
  Writer other(path, shared());
  other.add("tiny", DType::kU8, {5}, bytes_.data());
  ParallelSave second(std::move(other));
  EXPECT_NE(first.fingerprint(), second.fingerprint());
  try {
    second.join(first.create());
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("5 temporary files were made, and there are 1 to be written"));
  }
}

}  // namespace
}  // namespace penstock
