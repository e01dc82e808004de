// Loads: every policy and landing gives the same bytes, and bad input gives one line that says what is wrong.
#include "penstock/reader.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <stdexcept>

#include "base/bytes.h"
#include "penstock/error.h"
#include "penstock/measure.h"
#include "penstock/writer.h"
#include "testing/errors.h"
#include "testing/files.h"

namespace penstock {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;

struct Model {
  std::map<std::string, std::vector<std::byte>> tensors;

  // Large and small ones, an empty one, a scalar; together several blocks.
  static Model make() {
    Model model;
    model.tensors["big"] = testing::random_bytes(6 * kMiB, 1);
    model.tensors["middle"] = testing::random_bytes(700 * kKiB, 2);
    model.tensors["empty"] = {};
    model.tensors["scalar"] = testing::random_bytes(2, 3);
    for (int i = 0; i < 100; ++i)
      model.tensors["small." + std::to_string(i)] = testing::random_bytes(2 * (i + 1), 4 + i);
    return model;
  }

  Stats save(const std::filesystem::path& path, SaveOptions options = {}) const {
    Writer writer(path, std::move(options));
    for (const auto& [name, bytes] : tensors) {
      const Shape shape = name == "scalar" ? Shape{} : Shape{static_cast<std::int64_t>(bytes.size() / 2)};
      writer.add(name, DType::kBF16, shape, bytes.data());
    }
    return writer.commit();
  }

  void expect_equal(std::span<const Tensor> loaded) const {
    ASSERT_EQ(loaded.size(), tensors.size());
    for (const Tensor& tensor : loaded) {
      const auto& expected = tensors.at(tensor.name);
      ASSERT_EQ(tensor.bytes.size(), expected.size()) << tensor.name;
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), tensor.bytes.begin())) << tensor.name;
    }
  }
};

class ReaderTest : public ::testing::Test {
 protected:
  void SetUp() override { model_.save(path_); }

  TempDir directory_;
  const std::filesystem::path path_ = directory_ / "model.safetensors";
  const Model model_ = Model::make();
};

TEST_F(ReaderTest, every_policy_landing_and_backend_gives_the_same_bytes) {
  const Reader reader(path_);
  for (const CachePolicy cache :
       {CachePolicy::kAuto, CachePolicy::kDirect, CachePolicy::kBuffered, CachePolicy::kMap}) {
    for (const Landing landing : {Landing::kAuto, Landing::kInPlace, Landing::kStaged}) {
      for (const Backend backend : {Backend::kAuto, Backend::kThreads}) {
        for (const bool cold : {true, false}) {
          if (cold) drop_page_cache(path_);
          LoadOptions options;
          options.cache = cache;
          options.landing = landing;
          options.io.backend = backend;
          options.io.block_size = 256 * kKiB;
          model_.expect_equal(reader.load(options).tensors);
        }
      }
    }
  }
}

TEST_F(ReaderTest, a_cold_load_is_direct_and_leaves_no_page_cache) {
  drop_page_cache(path_);
  const Reader reader(path_);
  if (reader.resident_bytes() > 64 * kKiB)
    GTEST_SKIP() << "the filesystem of " << directory_.path() << " keeps its pages";
  const LoadResult result = reader.load();
  model_.expect_equal(result.tensors);
  EXPECT_EQ(result.stats.path, "direct");
  EXPECT_LE(result.stats.bytes_buffered, 4 * kKiB);  // what shares a page with the header
  EXPECT_LE(reader.resident_bytes(), 64 * kKiB);     // the header's
}

TEST_F(ReaderTest, a_warm_load_is_mapped_writable_and_private) {
  const auto before = testing::read_file(path_);  // also warms it
  const Reader reader(path_);
  LoadResult result = reader.load();
  EXPECT_EQ(result.stats.path, "mapped");
  EXPECT_EQ(result.stats.bytes_mapped, result.stats.bytes);
  for (Tensor& tensor : result.tensors) std::memset(tensor.bytes.data(), 0xFF, tensor.bytes.size());
  EXPECT_TRUE(testing::read_file(path_) == before);
}

TEST_F(ReaderTest, a_warm_file_that_is_open_for_writing_is_copied) {
  testing::read_file(path_);
  const Reader reader(path_);
  const int fd = ::open(path_.c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  const LoadResult result = reader.load();
  ::close(fd);
  EXPECT_EQ(result.stats.path, "buffered");
  model_.expect_equal(result.tensors);
  EXPECT_EQ(reader.load().stats.path, "mapped");
}

TEST_F(ReaderTest, a_copy_that_was_asked_for_is_one) {
  testing::read_file(path_);
  LoadOptions options;
  options.cache = CachePolicy::kCopy;
  const LoadResult result = Reader(path_).load(options);
  EXPECT_EQ(result.stats.path, "buffered");
  EXPECT_EQ(result.stats.bytes_mapped, 0u);
  model_.expect_equal(result.tensors);
}

TEST_F(ReaderTest, a_file_of_which_little_is_missing_is_completed_and_mapped) {
  testing::read_file(path_);
  const Reader reader(path_);
  {
    const int fd = ::open(path_.c_str(), O_RDONLY);
    ASSERT_GE(fd, 0);
    ::fsync(fd);
    ::posix_fadvise(fd, 2 * kMiB, 64 * kKiB, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
  if (reader.resident_bytes() == reader.files()[0].size) GTEST_SKIP() << "the filesystem keeps its pages";
  const LoadResult result = reader.load();
  EXPECT_EQ(result.stats.path, "mapped");
  model_.expect_equal(result.tensors);
  testing::read_file(path_);
}

TEST_F(ReaderTest, a_file_of_which_less_than_half_is_there_is_read_both_ways) {
  drop_page_cache(path_);
  const Reader reader(path_);
  if (reader.resident_bytes() > 64 * kKiB)
    GTEST_SKIP() << "the filesystem of " << directory_.path() << " keeps its pages";
  testing::fill_page_cache(path_, 0, 3 * kMiB);
  const LoadResult result = reader.load();
  model_.expect_equal(result.tensors);
  EXPECT_EQ(result.stats.path, "mixed");
  EXPECT_GT(result.stats.bytes_buffered, kMiB);
  EXPECT_GT(result.stats.bytes_direct, kMiB);
}

TEST_F(ReaderTest, tensors_outlive_their_reader_and_each_other) {
  std::optional<Tensor> kept;
  {
    LoadOptions options;
    options.cache = CachePolicy::kDirect;
    for (Tensor& tensor : Reader(path_).load(options).tensors) {
      if (tensor.name == "middle") kept = std::move(tensor);
    }
  }
  EXPECT_TRUE(std::equal(kept->bytes.begin(), kept->bytes.end(), model_.tensors.at("middle").begin()));
}

TEST_F(ReaderTest, a_second_load_lands_in_the_memory_of_the_first) {
  const Reader reader(path_);
  LoadOptions options;
  options.cache = CachePolicy::kDirect;
  options.pool = MemoryPool::create();
  const std::byte* first = reader.load(options).tensors[0].bytes.data();
  const LoadResult again = reader.load(options);
  EXPECT_EQ(again.tensors[0].bytes.data(), first);
  model_.expect_equal(again.tensors);
}

TEST_F(ReaderTest, a_selection_takes_only_its_own_memory) {
  LoadOptions options;
  options.cache = CachePolicy::kDirect;
  options.pool = MemoryPool::create({.max_kept_bytes = 0});
  options.select = [](const TensorInfo& tensor) { return tensor.name.starts_with("small.1"); };
  const LoadResult result = Reader(path_).load(options);
  EXPECT_EQ(result.tensors.size(), 11u);
  EXPECT_LE(options.pool->used_bytes(), 16 * kKiB);
  for (const Tensor& tensor : result.tensors) {
    EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(), model_.tensors.at(tensor.name).begin()));
  }
}

TEST_F(ReaderTest, a_selection_of_nothing_is_nothing) {
  LoadOptions options;
  options.select = [](const TensorInfo&) { return false; };
  EXPECT_TRUE(Reader(path_).load(options).tensors.empty());
}

TEST_F(ReaderTest, misaligned_tensors_are_moved_to_aligned_memory) {
  // A header of odd length, so that no tensor of F64 is aligned in the file.
  const auto data = testing::random_bytes(800'000 + 1);
  std::string header =
      R"({"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"d":{"dtype":"F64","shape":[100000],"data_offsets":[1,800001]}})";
  while ((8 + header.size()) % 8 != 0) header += ' ';
  testing::write_safetensors(directory_ / "odd", header, data);
  for (const CachePolicy cache : {CachePolicy::kDirect, CachePolicy::kBuffered, CachePolicy::kMap}) {
    for (const Landing landing : {Landing::kInPlace, Landing::kStaged}) {
      LoadOptions options;
      options.cache = cache;
      options.landing = landing;
      const LoadResult result = Reader(directory_ / "odd").load(options);
      EXPECT_EQ(result.stats.tensors_moved, 1u);
      const Tensor& tensor = result.tensors[1];
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % 8, 0u);
      EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(), data.begin() + 1));
    }
  }
}

TEST_F(ReaderTest, load_into_fills_the_callers_memory) {
  const Reader reader(path_);
  for (const Landing landing : {Landing::kInPlace, Landing::kStaged, Landing::kAuto}) {
    std::map<std::string, std::vector<std::byte>> memory;
    std::vector<Target> targets;
    for (const auto& [name, bytes] : model_.tensors) {
      memory[name].resize(bytes.size());
      targets.push_back({name, memory[name], std::nullopt});
    }
    LoadOptions options;
    options.landing = landing;
    options.cache = CachePolicy::kDirect;
    const Stats stats = reader.load_into(targets, options);
    EXPECT_TRUE(memory == model_.tensors);
    EXPECT_EQ(stats.tensors, targets.size());
  }
}

TEST_F(ReaderTest, load_into_checks_everything_before_it_writes_anything) {
  const Reader reader(path_);
  std::vector<std::byte> big(6 * kMiB);
  std::vector<std::byte> wrong(10);
  const Target unknown[] = {{"big", big, {}}, {"nothing", wrong, {}}};
  EXPECT_THAT(error_of([&] { reader.load_into(unknown); }).what(), HasSubstr("has no tensor \"nothing\""));
  const Target wrong_size[] = {{"big", big, {}}, {"middle", wrong, {}}};
  EXPECT_THAT(error_of([&] { reader.load_into(wrong_size); }).what(),
              HasSubstr("has 716800 bytes as BF16, its target has 10"));
  const Target twice[] = {{"big", big, {}}, {"big", big, {}}};
  EXPECT_THAT(error_of([&] { reader.load_into(twice); }).what(), HasSubstr("two targets"));
  EXPECT_EQ(big, std::vector<std::byte>(6 * kMiB));
}

TEST_F(ReaderTest, conversion_happens_on_the_way) {
  const std::vector<float> values = {0.0f, 1.5f, -2.25f, 1e20f, 3.14159274f};
  Writer writer(directory_ / "f32.safetensors");
  writer.add("x", DType::kF32, {5}, values.data());
  const std::int32_t integer = 7;
  writer.add("i", DType::kI32, {}, &integer);
  writer.commit();
  LoadOptions options;
  options.dtype = DType::kF64;
  const LoadResult result = Reader(directory_ / "f32.safetensors").load(options);
  for (const Tensor& tensor : result.tensors) {
    if (tensor.name == "i") {
      EXPECT_EQ(tensor.dtype, DType::kI32);
      EXPECT_EQ(*tensor.data<std::int32_t>(), 7);
    } else {
      EXPECT_EQ(tensor.dtype, DType::kF64);
      for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(tensor.data<double>()[i], static_cast<double>(values[i]));
    }
  }
}

TEST_F(ReaderTest, slices_read_only_what_they_name) {
  std::vector<std::int32_t> values(60 * 50 * 40);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(i);
  Writer writer(directory_ / "cube.safetensors");
  writer.add("cube", DType::kI32, {60, 50, 40}, values.data());
  writer.commit();
  const Reader reader(directory_ / "cube.safetensors");
  const Slice slices[] = {{10, 13}, {5, 45}, {7, 9}};
  const Tensor part = reader.load_slice("cube", slices);
  EXPECT_EQ(part.shape, (Shape{3, 40, 2}));
  std::size_t at = 0;
  for (int i = 10; i < 13; ++i) {
    for (int j = 5; j < 45; ++j) {
      for (int k = 7; k < 9; ++k) ASSERT_EQ(part.data<std::int32_t>()[at++], (i * 50 + j) * 40 + k);
    }
  }
  const Slice rows[] = {{59, 60}};
  EXPECT_EQ(reader.load_slice("cube", rows).data<std::int32_t>()[0], 59 * 50 * 40);
  EXPECT_EQ(reader.load_slice("cube", {}).bytes.size(), values.size() * 4);
  const Slice empty[] = {{3, 3}};
  EXPECT_EQ(reader.load_slice("cube", empty).shape, (Shape{0, 50, 40}));
  const Slice outside[] = {{0, 61}};
  EXPECT_THAT(error_of([&] { reader.load_slice("cube", outside); }).what(),
              HasSubstr("slice 0:61 of dimension 0 is not within 0:60"));
}

TEST_F(ReaderTest, a_stream_yields_everything_in_order_within_its_budget) {
  for (const std::uint64_t budget : {std::uint64_t{1}, 64 * kKiB, 64 * kMiB}) {
    LoadOptions options;
    options.max_buffer = budget;
    options.cache = CachePolicy::kDirect;
    options.pool = MemoryPool::create({.max_kept_bytes = 0});
    const Reader reader(path_);
    TensorStream stream = reader.stream(options);
    std::size_t count = 0;
    while (auto tensor = stream.next()) {
      EXPECT_EQ(tensor->name, reader.tensors()[count++].name);
      const auto& expected = model_.tensors.at(tensor->name);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), tensor->bytes.begin(), tensor->bytes.end()));
      EXPECT_LE(options.pool->used_bytes(), std::max<std::uint64_t>(budget, 6 * kMiB) + 34 * kMiB);
    }
    EXPECT_EQ(count, model_.tensors.size());
    EXPECT_FALSE(stream.next().has_value());
    EXPECT_EQ(stream.stats().tensors, count);
  }
}

TEST_F(ReaderTest, a_stream_of_rows_reads_these_and_nothing_else) {
  const std::map<std::string, Slice> rows{{"big", {1000, 3001}}, {"middle", {7, 7}}, {"small.9", {0, 10}}};
  for (const CachePolicy cache : {CachePolicy::kDirect, CachePolicy::kBuffered, CachePolicy::kMap}) {
    LoadOptions options;
    options.cache = cache;
    options.select = [](const TensorInfo& tensor) { return tensor.name != "scalar"; };
    for (const auto& [name, range] : rows) options.parts[name] = {{range}};
    TensorStream stream = Reader(path_).stream(options);
    stream.start();
    std::uint64_t nbytes = 0;
    while (auto tensor = stream.next()) {
      std::span<const std::byte> expected = model_.tensors.at(tensor->name);
      if (const auto found = rows.find(tensor->name); found != rows.end()) {
        const Slice& range = found->second;
        expected = expected.subspan(range.begin * 2, (range.end - range.begin) * 2);
        EXPECT_EQ(tensor->shape, (Shape{range.end - range.begin}));
      }
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), tensor->bytes.begin(), tensor->bytes.end()));
      nbytes += expected.size();
    }
    EXPECT_EQ(stream.stats().bytes, nbytes);
    EXPECT_EQ(nbytes, 2001 * 2 + 100 * 101u);
  }
}

TEST_F(ReaderTest, rows_that_there_are_not_are_refused) {
  const Reader reader(path_);
  const auto refusal = [&](const std::string& name, Slice range) {
    LoadOptions options;
    options.parts[name] = {{range}};
    const std::string of_stream = error_of([&] { reader.stream(options); }).what();
    EXPECT_EQ(of_stream, error_of([&] { reader.load(options); }).what());
    return of_stream;
  };
  EXPECT_THAT(refusal("small.9", {0, 11}),
              HasSubstr("tensor \"small.9\": slice 0:11 of dimension 0 is not within 0:10"));
  EXPECT_THAT(refusal("small.9", {-1, 2}), HasSubstr("slice -1:2 of dimension 0 is not within 0:10"));
  EXPECT_THAT(refusal("small.9", {3, 2}), HasSubstr("slice 3:2 of dimension 0 is not within 0:10"));
  EXPECT_THAT(refusal("scalar", {0, 1}), HasSubstr("has 0 dimensions, 1 slices were given"));
  EXPECT_THAT(refusal("absent", {0, 1}), HasSubstr("absent"));
  LoadOptions verified;
  verified.verify = Verify::kAny;
  verified.parts["big"] = {{{0, 1}}};
  EXPECT_THAT(error_of([&] { reader.stream(verified); }).what(), HasSubstr("can't be verified"));
}

TEST_F(ReaderTest, what_goes_wrong_when_a_stream_starts_is_told_by_next) {
  const Reader reader(path_);
  ASSERT_EQ(::truncate(path_.c_str(), 4 * kMiB), 0);
  TensorStream stream = reader.stream();
  stream.start();
  EXPECT_EQ(error_of([&] {
              while (stream.next()) continue;
            }).kind(),
            ErrorKind::kChanged);
}

TEST_F(ReaderTest, a_stream_may_be_dropped_half_way) {
  const std::size_t before = testing::open_descriptors();
  {
    TensorStream stream = Reader(path_).stream();
    EXPECT_TRUE(stream.next().has_value());
  }
  EXPECT_EQ(testing::open_descriptors(), before);
}

TEST_F(ReaderTest, a_file_that_shrinks_is_an_error) {
  const Reader reader(path_);
  ASSERT_EQ(::truncate(path_.c_str(), 4 * kMiB), 0);
  for (const CachePolicy cache :
       {CachePolicy::kAuto, CachePolicy::kDirect, CachePolicy::kBuffered, CachePolicy::kMap}) {
    LoadOptions options;
    options.cache = cache;
    EXPECT_EQ(error_of([&] { reader.load(options); }).kind(), ErrorKind::kChanged);
  }
  EXPECT_EQ(error_of([&] {
              TensorStream stream = reader.stream();
              while (stream.next()) continue;
            }).kind(),
            ErrorKind::kChanged);
}

TEST_F(ReaderTest, a_file_that_is_rewritten_in_place_is_an_error) {
  const Reader reader(path_);
  {
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }
  LoadOptions options;
  options.cache = CachePolicy::kDirect;
  EXPECT_THAT(error_of([&] { reader.load(options); }).what(), HasSubstr("was written to while it was read"));
}

TEST_F(ReaderTest, a_cancelled_load_leaves_nothing) {
  const std::size_t before = testing::open_descriptors();
  LoadOptions options;
  options.pool = MemoryPool::create({.max_kept_bytes = 0});
  options.progress = [](const Progress&) { return false; };
  EXPECT_EQ(error_of([&] { Reader(path_).load(options); }).kind(), ErrorKind::kCancelled);
  EXPECT_EQ(options.pool->used_bytes(), 0u);
  EXPECT_EQ(testing::open_descriptors(), before);
}

TEST_F(ReaderTest, tensors_are_placed_before_they_are_returned) {
  for (const CachePolicy cache : {CachePolicy::kDirect, CachePolicy::kBuffered, CachePolicy::kMap}) {
    std::vector<std::pair<std::string, const std::byte*>> placed;
    LoadOptions options;
    options.cache = cache;
    options.placed = [&](std::span<const Tensor> tensors) {
      EXPECT_TRUE(placed.empty());
      for (const Tensor& tensor : tensors) placed.emplace_back(tensor.name, tensor.bytes.data());
    };
    const LoadResult result = Reader(path_).load(options);
    model_.expect_equal(result.tensors);
    ASSERT_EQ(placed.size(), result.tensors.size());
    for (std::size_t i = 0; i < placed.size(); ++i) {
      EXPECT_EQ(placed[i].first, result.tensors[i].name);
      EXPECT_EQ(placed[i].second, result.tensors[i].bytes.data());
    }
  }
}

TEST_F(ReaderTest, what_fails_when_tensors_are_placed_ends_the_load) {
  const std::size_t before = testing::open_descriptors();
  LoadOptions options;
  options.cache = CachePolicy::kDirect;
  options.pool = MemoryPool::create({.max_kept_bytes = 0});
  options.placed = [](std::span<const Tensor>) { throw std::runtime_error("no room for a graph"); };
  EXPECT_THROW(Reader(path_).load(options), std::runtime_error);
  EXPECT_EQ(options.pool->used_bytes(), 0u);
  EXPECT_EQ(testing::open_descriptors(), before);
}

TEST_F(ReaderTest, progress_ends_at_the_total) {
  Progress last;
  LoadOptions options;
  options.cache = CachePolicy::kDirect;
  options.progress = [&](const Progress& now) {
    EXPECT_GE(now.bytes_done, last.bytes_done);
    last = now;
    return true;
  };
  const LoadResult result = Reader(path_).load(options);
  EXPECT_EQ(last.bytes_done, result.stats.bytes);
  EXPECT_EQ(last.bytes_total, result.stats.bytes);
}

TEST_F(ReaderTest, shards_are_opened_by_directory_index_or_list) {
  SaveOptions options;
  options.max_shard_size = 2 * kMiB;
  std::filesystem::create_directory(directory_ / "sharded");
  model_.save(directory_ / "sharded" / "model.safetensors", options);
  EXPECT_EQ(Reader(directory_ / "sharded").files().size(), 2u);
  model_.expect_equal(Reader(directory_ / "sharded").load().tensors);
  model_.expect_equal(Reader(directory_ / "sharded" / "model.safetensors.index.json").load().tensors);
  const std::filesystem::path files[] = {directory_ / "sharded" / "model-00001-of-00002.safetensors",
                                         directory_ / "sharded" / "model-00002-of-00002.safetensors"};
  model_.expect_equal(Reader(files).load().tensors);
  const std::filesystem::path twice[] = {files[0], files[0]};
  EXPECT_THAT(error_of([&] { Reader{std::span(twice)}; }).what(), HasSubstr("listed twice"));
  std::filesystem::copy_file(files[0], directory_ / "copy");
  const std::filesystem::path copies[] = {files[0], directory_ / "copy"};
  EXPECT_THAT(error_of([&] { Reader{std::span(copies)}; }).what(), HasSubstr("is also in"));
  std::filesystem::remove(files[1]);
  const Error error = error_of([&] { Reader{directory_ / "sharded"}; });
  EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
  EXPECT_THAT(error.what(), HasSubstr("the shard \"model-00002-of-00002.safetensors\" that it lists does not exist"));
}

TEST_F(ReaderTest, an_index_that_names_a_tensor_its_shard_lacks_is_refused) {
  testing::write_file(directory_ / "bad.index.json", R"({"weight_map":{"ghost":"model.safetensors"}})");
  EXPECT_THAT(error_of([&] { Reader{directory_ / "bad.index.json"}; }).what(),
              HasSubstr("lists tensor \"ghost\" in \"model.safetensors\", which does not have it"));
}

TEST_F(ReaderTest, files_that_are_nothing_are_refused) {
  EXPECT_EQ(error_of([&] { Reader{directory_ / "missing"}; }).kind(), ErrorKind::kNotFound);
  std::filesystem::create_directory(directory_ / "nothing");
  EXPECT_THAT(error_of([&] { Reader{directory_ / "nothing"}; }).what(),
              HasSubstr("the directory has no *.safetensors or *.flashpack file and no *.index.json"));
  testing::write_file(directory_ / "empty", "");
  EXPECT_EQ(error_of([&] { Reader{directory_ / "empty"}; }).kind(), ErrorKind::kFormat);
  testing::write_file(directory_ / "garbage", testing::random_bytes(5000));
  EXPECT_EQ(error_of([&] { Reader{directory_ / "garbage"}; }).kind(), ErrorKind::kFormat);
}

TEST_F(ReaderTest, a_file_without_permission_is_refused) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything; the Python tests cover this as another user";
  ASSERT_EQ(::chmod(path_.c_str(), 0), 0);
  EXPECT_EQ(error_of([&] { Reader{path_}; }).kind(), ErrorKind::kPermission);
}

TEST_F(ReaderTest, checksums_are_checked_on_request) {
  SaveOptions options;
  options.checksums = true;
  const auto path = directory_ / "checked.safetensors";
  model_.save(path, options);
  LoadOptions load;
  load.verify = Verify::kAny;
  for (const CachePolicy cache : {CachePolicy::kDirect, CachePolicy::kBuffered, CachePolicy::kAuto}) {
    load.cache = cache;
    model_.expect_equal(Reader(path).load(load).tensors);
    TensorStream stream = Reader(path).stream(load);
    while (stream.next()) continue;
  }
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    const TensorInfo info = *Reader(path).find("big");
    file.seekp(static_cast<std::streamoff>(info.offset + 3 * kMiB));
    file.put('\x5a');
  }
  EXPECT_THAT(error_of([&] { Reader(path).load(load); }).what(),
              HasSubstr("tensor \"big\" is corrupt: its CRC-32C is"));
  EXPECT_THAT(error_of([&] {
                TensorStream stream = Reader(path).stream(load);
                while (stream.next()) continue;
              }).what(),
              HasSubstr("tensor \"big\" is corrupt"));
  EXPECT_NO_THROW(Reader(path).load());
}

}  // namespace
}  // namespace penstock
