// Loads of files that the page cache holds in part: what is missing is read into it, and nothing is copied.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "base/bytes.h"
#include "penstock/measure.h"
#include "penstock/reader.h"
#include "penstock/writer.h"
#include "testing/errors.h"
#include "testing/files.h"

namespace penstock {
namespace {

using testing::TempDir;

constexpr std::uint64_t kTensorSize = 10 * kMiB;

class MappingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    save({});
    if (Reader(path_).resident_bytes() > kMiB)
      GTEST_SKIP() << "the filesystem of " << directory_.path() << " keeps its pages";
  }

  // Four tensors, one after the other, none of them in the page cache.
  void save(SaveOptions options) {
    Writer writer(path_, std::move(options));
    for (std::size_t i = 0; i < contents_.size(); ++i) {
      writer.add("t" + std::to_string(i), DType::kU8, {kTensorSize}, contents_[i].data());
    }
    writer.commit();
    const Reader reader(checkpoint());
    for (const FileInfo& file : reader.files()) drop_page_cache(file.path);
  }

  std::filesystem::path checkpoint() const {
    return std::filesystem::exists(path_) ? path_ : std::filesystem::path(path_.native() + ".index.json");
  }

  static void cache(const Reader& reader, const std::string& name, std::uint64_t nbytes = kTensorSize) {
    const TensorInfo& info = *reader.find(name);
    testing::fill_page_cache(reader.files()[info.file].path, info.offset, nbytes);
  }

  void expect_equal(const LoadResult& result) const {
    for (const Tensor& tensor : result.tensors) {
      const auto& expected = contents_[static_cast<std::size_t>(tensor.name[1] - '0')];
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), tensor.bytes.begin(), tensor.bytes.end()));
    }
  }

  const TempDir directory_;
  const std::filesystem::path path_ = directory_ / "m.safetensors";
  const std::vector<std::vector<std::byte>> contents_ = {
      testing::random_bytes(kTensorSize, 1), testing::random_bytes(kTensorSize, 2),
      testing::random_bytes(kTensorSize, 3), testing::random_bytes(kTensorSize, 4)};
};

TEST_F(MappingTest, a_file_of_which_half_is_there_is_completed_and_mapped) {
  const Reader reader(path_);
  cache(reader, "t1");
  cache(reader, "t3");
  const LoadResult result = reader.load();
  EXPECT_EQ(result.stats.path, "mapped");
  EXPECT_EQ(result.stats.bytes_mapped, 4 * kTensorSize);
  EXPECT_EQ(result.stats.reason, "the page cache holds 50% of it: the rest is read into it, and nothing is copied");
  EXPECT_EQ(reader.resident_bytes(), 4 * kTensorSize);
  ASSERT_EQ(result.tensors.size(), 4u);
  expect_equal(result);
}

TEST_F(MappingTest, a_file_of_which_less_is_there_is_read_past_the_page_cache) {
  const Reader reader(path_);
  cache(reader, "t1");
  const LoadResult result = reader.load();
  EXPECT_NE(result.stats.path, "mapped");
  EXPECT_LE(reader.resident_bytes(), kTensorSize + kMiB);
  expect_equal(result);
}

TEST_F(MappingTest, only_what_is_selected_is_completed) {
  const Reader reader(path_);
  cache(reader, "t0");
  cache(reader, "t3", kTensorSize / 2);
  LoadOptions options;
  options.select = [](const TensorInfo& tensor) { return tensor.name == "t0" || tensor.name == "t3"; };
  const LoadResult result = reader.load(options);
  EXPECT_EQ(result.stats.path, "mapped");
  EXPECT_LE(reader.resident_bytes(), 2 * kTensorSize + kMiB);
  ASSERT_EQ(result.tensors.size(), 2u);
  expect_equal(result);
}

TEST_F(MappingTest, shards_are_judged_together) {
  SaveOptions options;
  options.max_shard_size = kTensorSize;
  std::filesystem::remove(path_);
  save(std::move(options));
  const Reader reader(checkpoint());
  ASSERT_EQ(reader.files().size(), 4u);
  cache(reader, "t0");
  cache(reader, "t2");
  const LoadResult result = reader.load();
  EXPECT_EQ(result.stats.path, "mapped");
  EXPECT_EQ(reader.resident_bytes(), 4 * kTensorSize);
  expect_equal(result);
}

TEST_F(MappingTest, streams_of_what_is_cached_map_it) {
  const Reader reader(path_);
  for (const char* name : {"t0", "t1", "t2", "t3"}) cache(reader, name);
  LoadOptions options;
  options.max_buffer = kTensorSize;  // portions of less than a tensor: each has a mapping of its own
  TensorStream stream = reader.stream(options);
  LoadResult result;
  while (auto tensor = stream.next()) result.tensors.push_back(std::move(*tensor));
  ASSERT_EQ(result.tensors.size(), 4u);
  expect_equal(result);
  EXPECT_EQ(stream.stats().path, "mapped");
  EXPECT_EQ(stream.stats().bytes_mapped, 4 * kTensorSize);
  EXPECT_NE(result.tensors[0].memory, result.tensors[1].memory);
  options.cache = CachePolicy::kCopy;
  TensorStream copying = reader.stream(options);
  while (copying.next()) continue;
  EXPECT_EQ(copying.stats().path, "buffered");
}

TEST_F(MappingTest, streams_complete_what_is_half_cached) {
  const Reader reader(path_);
  cache(reader, "t1");
  cache(reader, "t2");
  TensorStream stream = reader.stream();
  LoadResult result;
  while (auto tensor = stream.next()) result.tensors.push_back(std::move(*tensor));
  expect_equal(result);
  EXPECT_EQ(stream.stats().path, "mapped");
  EXPECT_EQ(reader.resident_bytes(), 4 * kTensorSize);
}

TEST_F(MappingTest, slices_of_what_is_cached_are_views_of_it) {
  const Reader reader(path_);
  cache(reader, "t1");
  const Slice part{kMiB + 1, 3 * kMiB + 1};
  const auto same_memory = [&](CachePolicy policy) {
    LoadOptions options;
    options.cache = policy;
    const Tensor tensor = reader.load_slice("t1", {&part, 1}, options);
    EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(), contents_[1].begin() + kMiB + 1));
    // A mapping keeps the offset within the page; a copy starts a page of its own.
    return reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % 4096 ==
           (reader.find("t1")->offset + kMiB + 1) % 4096;
  };
  EXPECT_TRUE(same_memory(CachePolicy::kAuto));
  EXPECT_TRUE(same_memory(CachePolicy::kMap));
  EXPECT_FALSE(same_memory(CachePolicy::kCopy));
  // Cold, it is read.
  drop_page_cache(path_);
  EXPECT_FALSE(same_memory(CachePolicy::kAuto));
}

TEST_F(MappingTest, completing_can_be_watched_and_stopped) {
  const Reader reader(path_);
  const auto cache_half = [&] {
    drop_page_cache(path_);
    cache(reader, "t0");
    cache(reader, "t1");
  };
  std::vector<std::uint64_t> seen;
  LoadOptions options;
  options.progress = [&](const Progress& progress) {
    EXPECT_EQ(progress.bytes_total, 4 * kTensorSize);
    seen.push_back(progress.bytes_done);
    return true;
  };
  cache_half();
  reader.load(options);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_LT(seen.front(), 4 * kTensorSize);
  EXPECT_EQ(seen.back(), 4 * kTensorSize);

  seen.clear();
  options.progress = [&](const Progress& progress) {
    seen.push_back(progress.bytes_done);
    return false;
  };
  cache_half();
  EXPECT_EQ(testing::error_of([&] { reader.load(options); }).kind(), ErrorKind::kCancelled);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_LT(seen.front(), 4 * kTensorSize);
}

TEST_F(MappingTest, an_empty_tensor_of_a_file_that_is_not_there_needs_nothing) {
  Writer first(directory_ / "first.safetensors");
  first.add("t0", DType::kU8, {kTensorSize}, contents_[0].data());
  first.commit();
  // Within a page, far from the header's and from the file's last one.
  testing::write_safetensors(directory_ / "second.safetensors",
                             R"({"t1":{"dtype":"U8","shape":[5000001],"data_offsets":[0,5000001]},)"
                             R"("zero":{"dtype":"U8","shape":[0],"data_offsets":[5000001,5000001]},)"
                             R"("t2":{"dtype":"U8","shape":[4999998],"data_offsets":[5000001,9999999]}})",
                             std::span(contents_[1]).first(9'999'999));
  const std::filesystem::path files[] = {directory_ / "first.safetensors", directory_ / "second.safetensors"};
  for (const auto& file : files) drop_page_cache(file);
  const Reader reader(files);
  cache(reader, "t0");
  LoadOptions options;
  options.select = [](const TensorInfo& tensor) { return tensor.name == "t0" || tensor.name == "zero"; };
  const LoadResult result = reader.load(options);
  EXPECT_EQ(result.stats.path, "mapped");
  ASSERT_EQ(result.tensors.size(), 2u);
  EXPECT_LE(reader.resident_bytes(), kTensorSize + kMiB);
}

TEST_F(MappingTest, a_file_that_shrinks_while_it_is_completed_is_an_error) {
  const Reader reader(path_);
  cache(reader, "t0");
  cache(reader, "t1");
  LoadOptions options;
  options.progress = [&](const Progress& progress) {
    return progress.bytes_done == progress.bytes_total || ::truncate(path_.c_str(), kMiB) == 0;
  };
  EXPECT_EQ(testing::error_of([&] { reader.load(options); }).kind(), ErrorKind::kChanged);
}

TEST_F(MappingTest, a_file_that_shrinks_before_it_is_completed_is_an_error) {
  const Reader reader(path_);
  cache(reader, "t0");
  cache(reader, "t1");
  ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(3 * kTensorSize)), 0);
  EXPECT_EQ(testing::error_of([&] { reader.load(); }).kind(), ErrorKind::kChanged);
}

}  // namespace
}  // namespace penstock
