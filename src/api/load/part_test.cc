// Parts of tensors: the runs that they are, and what is read of them.
#include "api/load/part.h"

#include <gmock/gmock.h>

#include <map>
#include <numeric>
#include <random>

#include "base/tuning.h"
#include "penstock/reader.h"
#include "penstock/writer.h"
#include "testing/errors.h"
#include "testing/files.h"

namespace penstock {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

// The indices that ranges pick, one by one.
std::vector<std::int64_t> indices_of(const std::vector<Slice>& ranges, std::int64_t size) {
  std::vector<std::int64_t> indices;
  for (const Slice& range : ranges) {
    for (std::int64_t i = range.begin; i < range.end; i += range.step) indices.push_back(i);
  }
  if (ranges.empty()) {
    indices.resize(static_cast<std::size_t>(size));
    std::iota(indices.begin(), indices.end(), 0);
  }
  return indices;
}

// The elements of a part, in its order, counted from the start of the tensor.
std::vector<std::int64_t> elements_of(const Shape& shape, const Part& part) {
  std::vector<std::int64_t> elements{0};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    std::vector<std::int64_t> longer;
    for (const std::int64_t element : elements) {
      for (const std::int64_t index : indices_of(i < part.size() ? part[i] : std::vector<Slice>{}, shape[i])) {
        longer.push_back(element * shape[i] + index);
      }
    }
    elements = std::move(longer);
  }
  return elements;
}

std::vector<Slice> random_ranges(std::mt19937& random, std::int64_t size) {
  std::vector<Slice> ranges;
  if (random() % 3 == 0) return ranges;
  std::int64_t begin = 0;
  for (std::uint64_t count = 1 + random() % 3; count > 0; --count) {
    begin += static_cast<std::int64_t>(random() % static_cast<unsigned>(size - begin + 1));
    const std::int64_t end = begin + static_cast<std::int64_t>(random() % static_cast<unsigned>(size - begin + 1));
    ranges.push_back({begin, end, 1 + static_cast<std::int64_t>(random() % 3)});
    begin = end;
  }
  return ranges;
}

Part random_part(std::mt19937& random, const Shape& shape) {
  Part part;
  for (const std::int64_t size : shape) {
    part.push_back(random_ranges(random, size));
    if (random() % 5 == 0) break;
  }
  return part;
}

TEST(PartTest, runs_hold_every_element_once_and_in_order) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    Shape shape;
    for (std::uint64_t i = 0, rank = random() % 4; i < rank; ++i) {
      shape.push_back(static_cast<std::int64_t>(1 + random() % 6));
    }
    TensorInfo tensor{"a", DType::kI32, shape, 0, 4096, 4, {}};
    for (const std::int64_t size : shape) tensor.nbytes *= static_cast<std::uint64_t>(size);
    const Part part = random_part(random, shape);
    const PartRuns runs(tensor, part);
    std::vector<std::int64_t> found;
    std::uint64_t count = 0;
    std::uint64_t last_end = 0;
    runs.for_each([&](std::uint64_t offset, std::uint64_t nbytes) {
      EXPECT_GE(offset, last_end);
      last_end = offset + nbytes;
      ++count;
      for (std::uint64_t at = offset; at < offset + nbytes; at += 4) {
        found.push_back(static_cast<std::int64_t>(at - 4096) / 4);
      }
    });
    const std::vector<std::int64_t> expected = elements_of(shape, part);
    ASSERT_EQ(found, expected);
    EXPECT_EQ(runs.count(), count);
    EXPECT_EQ(runs.nbytes(), expected.size() * 4);
    if (expected.empty()) continue;
    EXPECT_EQ(runs.extent(), (ByteRange{4096 + static_cast<std::uint64_t>(expected.front()) * 4,
                                        4096 + static_cast<std::uint64_t>(expected.back()) * 4 + 4}));
  }
}

TEST(PartTest, ranges_that_cant_be_are_refused) {
  const TensorInfo tensor{"a", DType::kI32, {4, 6}, 0, 0, 96, {}};
  const auto refusal = [&](const Part& part) { return std::string(error_of([&] { PartRuns(tensor, part); }).what()); };
  EXPECT_THAT(refusal({{{0, 5}}}), HasSubstr("tensor \"a\": slice 0:5 of dimension 0 is not within 0:4"));
  EXPECT_THAT(refusal({{}, {{2, 1}}}), HasSubstr("slice 2:1 of dimension 1 is not within 0:6"));
  EXPECT_THAT(refusal({{}, {{0, 6, 0}}}), HasSubstr("slice 0:6:0 of dimension 1: a step is at least 1"));
  EXPECT_THAT(refusal({{}, {{2, 4}, {3, 5}}}), HasSubstr("begins before the one before it has ended"));
  EXPECT_THAT(refusal({{}, {}, {}}), HasSubstr("has 2 dimensions, 3 slices were given"));
}

TEST(PartTest, elements_smaller_than_a_byte_are_not_cut) {
  const TensorInfo tensor{"a", DType::kF4, {4, 6}, 0, 0, 12, {}};
  EXPECT_EQ(PartRuns(tensor, {{}, {{2, 4}}}).nbytes(), 4u);
  EXPECT_THAT(error_of([&] { PartRuns(tensor, {{}, {{1, 4}}}); }).what(), HasSubstr("whole bytes"));
  EXPECT_THAT(error_of([&] { PartRuns(tensor, {{}, {{0, 4, 2}}}); }).what(), HasSubstr("whole bytes"));
}

// A file with a large matrix between small ones, and what parts of it are.
class PartLoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    add("a", {3, 5});
    add("matrix", {512, 4096});
    add("cube", {30, 40, 50});
    add("line", {100'003});
    Writer writer(path_);
    for (const auto& [name, values] : values_) writer.add(name, DType::kI32, shapes_.at(name), values.data());
    writer.commit();
  }

  void add(const std::string& name, const Shape& shape) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    shapes_[name] = shape;
    std::vector<std::int32_t>& values = values_[name];
    values.resize(static_cast<std::size_t>(count));
    std::iota(values.begin(), values.end(), static_cast<std::int32_t>(values_.size() * 10'000'000));
  }

  std::vector<std::int32_t> expected(const std::string& name, const LoadOptions& options) const {
    const auto part = options.parts.find(name);
    if (part == options.parts.end()) return values_.at(name);
    std::vector<std::int32_t> picked;
    for (const std::int64_t i : elements_of(shapes_.at(name), part->second)) {
      picked.push_back(values_.at(name)[static_cast<std::size_t>(i)]);
    }
    return picked;
  }

  void expect_equal(const Tensor& tensor, const LoadOptions& options) const {
    const std::span<const std::int32_t> found(tensor.data<std::int32_t>(), tensor.bytes.size() / 4);
    EXPECT_TRUE(std::ranges::equal(found, expected(tensor.name, options))) << tensor.name;
    const std::int64_t count =
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1}, std::multiplies<>());
    EXPECT_EQ(static_cast<std::uint64_t>(count) * 4, tensor.bytes.size()) << tensor.name;
  }

  const testing::TempDir directory_;
  const std::filesystem::path path_ = directory_ / "model.safetensors";
  std::map<std::string, Shape> shapes_;
  std::map<std::string, std::vector<std::int32_t>> values_;
};

constexpr CachePolicy kPolicies[] = {CachePolicy::kAuto, CachePolicy::kCopy, CachePolicy::kDirect,
                                     CachePolicy::kBuffered};

TEST_F(PartLoadTest, loads_and_streams_give_the_same_parts) {
  std::mt19937 random(11);
  const Reader reader(path_);
  for (int round = 0; round < 24; ++round) {
    LoadOptions options;
    options.cache = kPolicies[round % 4];
    options.max_buffer = round % 3 == 0 ? 64 * kKiB : 256 * kMiB;
    for (const auto& [name, shape] : shapes_) {
      if (random() % 4 != 0) options.parts[name] = random_part(random, shape);
    }
    const LoadResult loaded = reader.load(options);
    ASSERT_EQ(loaded.tensors.size(), shapes_.size());
    for (std::size_t i = 0; i < loaded.tensors.size(); ++i) {
      EXPECT_EQ(loaded.tensors[i].name, reader.tensors()[i].name);
      expect_equal(loaded.tensors[i], options);
    }
    TensorStream stream = reader.stream(options);
    std::size_t count = 0;
    while (const auto tensor = stream.next()) {
      expect_equal(*tensor, options);
      ++count;
    }
    EXPECT_EQ(count, shapes_.size());
    EXPECT_EQ(stream.stats().bytes, loaded.stats.bytes);
  }
}

TEST_F(PartLoadTest, parts_are_converted_and_put_into_memory_that_is_there) {
  std::mt19937 random(13);
  const Reader reader(path_);
  for (int round = 0; round < 12; ++round) {
    LoadOptions options;
    options.cache = kPolicies[round % 4];
    std::map<std::string, std::vector<std::int32_t>> memory;
    std::vector<Target> targets;
    for (const auto& [name, shape] : shapes_) {
      options.parts[name] = random_part(random, shape);
      memory[name].resize(expected(name, options).size());
      targets.push_back({name, std::as_writable_bytes(std::span(memory[name])), std::nullopt, options.parts[name]});
    }
    std::uint64_t done = 0;
    options.progress = [&](const Progress& now) {
      EXPECT_GE(now.bytes_done, done);
      done = now.bytes_done;
      return true;
    };
    const Stats stats = reader.load_into(targets, options);
    EXPECT_EQ(stats.bytes, done);
    for (const auto& [name, found] : memory) EXPECT_TRUE(found == expected(name, options)) << name;
  }
}

TEST_F(PartLoadTest, a_target_of_another_size_than_its_part_is_refused) {
  std::vector<std::byte> memory(64);
  const Target target{"a", memory, std::nullopt, {{{0, 2}}}};
  EXPECT_THAT(error_of([&] {
                Reader(path_).load_into({&target, 1});
              }).what(),
              HasSubstr("the part of tensor \"a\" has 40 bytes as I32, its target has 64"));
}

// Four ranks, each a quarter of the rows or columns. Together they read hardly more than the file has.
TEST_F(PartLoadTest, ranks_together_read_little_more_than_everything) {
  const Reader reader(path_);
  for (const bool columns : {false, true}) {
    std::uint64_t covered = 0;
    std::uint64_t wanted = 0;
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      LoadOptions options;
      options.cache = CachePolicy::kDirect;
      options.select = [](const TensorInfo& tensor) { return tensor.name == "matrix"; };
      const std::int64_t size = columns ? 4096 : 512;
      const std::vector<Slice> quarter{{rank * size / 4, (rank + 1) * size / 4}};
      options.parts["matrix"] = columns ? Part{{}, quarter} : Part{quarter};
      const LoadResult result = reader.load(options);
      expect_equal(result.tensors.front(), options);
      covered += result.stats.bytes_on_drive;
      wanted += result.stats.bytes;
    }
    EXPECT_EQ(wanted, 512u * 4096 * 4);
    EXPECT_LE(covered, columns ? wanted * 6 / 5 : wanted * 51 / 50);
  }
}

TEST_F(PartLoadTest, scattered_parts_cant_be_mapped_and_rows_can) {
  LoadOptions options;
  options.cache = CachePolicy::kMap;
  options.parts["matrix"] = {{{100, 200}}};
  expect_equal(Reader(path_).load(options).tensors.back(), options);
  options.parts["matrix"] = {{}, {{100, 200}}};
  EXPECT_THAT(error_of([&] { Reader(path_).load(options); }).what(),
              HasSubstr("tensor \"matrix\": a part whose elements are apart in the file can't be mapped"));
}

}  // namespace
}  // namespace penstock
