#include "penstock/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "penstock/error.h"
#include "penstock/measure.h"
#include "penstock/writer.h"
#include "testing/files.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;

class ConvertTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>(i) / 3 - 1000;
    SaveOptions options;
    options.metadata = {{"author", "us"}};
    Writer writer(source_, options);
    writer.add("f", DType::kF32, {static_cast<std::int64_t>(values_.size())}, values_.data());
    writer.add("i", DType::kU8, {5}, "12345");
    writer.commit();
  }

  std::string refusal(const std::filesystem::path& target, const ConvertOptions& options = {}) {
    try {
      convert(source_, target, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TempDir directory_;
  const std::filesystem::path source_ = directory_ / "source.safetensors";
  std::vector<float> values_ = std::vector<float>(1'500'000);
};

TEST_F(ConvertTest, copies_tensors_and_metadata) {
  convert(source_, directory_ / "copy.safetensors");
  const Reader copy(directory_ / "copy.safetensors");
  EXPECT_EQ(copy.metadata().at("author"), "us");
  const Tensor tensor = copy.load_slice("f", {});
  EXPECT_TRUE(std::equal(values_.begin(), values_.end(), tensor.data<float>()));
}

TEST_F(ConvertTest, metadata_without_a_place_in_the_target_is_left_out_and_told) {
  for (const std::string format : {"torch", "torch-legacy"}) {
    ConvertOptions options;
    options.save.format = format;
    const ConvertStats stats = convert(source_, directory_ / ("copy." + format), options);
    EXPECT_THAT(stats.notes,
                ::testing::ElementsAre("metadata is left out, because a torch file holds none: \"author\""));
    EXPECT_EQ(stats.tensors, 2u);
    const Tensor tensor = Reader(directory_ / ("copy." + format)).load_slice("f", {});
    EXPECT_TRUE(std::equal(values_.begin(), values_.end(), tensor.data<float>()));
  }
  EXPECT_THAT(convert(source_, directory_ / "copy.flashpack").notes, ::testing::IsEmpty());
}

TEST_F(ConvertTest, casts_floating_tensors_and_leaves_the_others) {
  ConvertOptions options;
  options.dtype = DType::kF64;
  convert(source_, directory_ / "wide.safetensors", options);
  const Reader wide(directory_ / "wide.safetensors");
  EXPECT_EQ(wide.find("i")->dtype, DType::kU8);
  const Tensor tensor = wide.load_slice("f", {});
  ASSERT_EQ(tensor.dtype, DType::kF64);
  for (std::size_t i = 0; i < values_.size(); ++i) ASSERT_EQ(tensor.data<double>()[i], static_cast<double>(values_[i]));
}

TEST_F(ConvertTest, renames_what_was_selected_by_its_old_name) {
  ConvertOptions options;
  options.select = [](const TensorInfo& tensor) { return tensor.name == "f"; };
  options.rename = [](std::string_view name) { return "model." + std::string(name); };
  convert(source_, directory_ / "renamed.safetensors", options);
  const Reader renamed(directory_ / "renamed.safetensors");
  ASSERT_EQ(renamed.tensors().size(), 1u);
  const Tensor tensor = renamed.load_slice("model.f", {});
  EXPECT_TRUE(std::equal(values_.begin(), values_.end(), tensor.data<float>()));
}

TEST_F(ConvertTest, refuses_two_tensors_of_one_new_name) {
  ConvertOptions options;
  options.rename = [](std::string_view) { return std::string("x"); };
  EXPECT_THAT(refusal(directory_ / "renamed.safetensors", options),
              HasSubstr("renamed.safetensors: tensors \"f\" and \"i\" would both be called \"x\""));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "renamed.safetensors"));
}

TEST_F(ConvertTest, shards_and_joins_again) {
  ConvertOptions options;
  options.save.max_shard_size = 1 * kMiB;
  std::filesystem::create_directory(directory_ / "out");
  convert(source_, directory_ / "out" / "m.safetensors", options);
  EXPECT_EQ(Reader(directory_ / "out").files().size(), 2u);
  convert(directory_ / "out", directory_ / "joined.safetensors");
  convert(source_, directory_ / "copy.safetensors");
  EXPECT_TRUE(testing::read_file(directory_ / "joined.safetensors") ==
              testing::read_file(directory_ / "copy.safetensors"));
}

TEST_F(ConvertTest, never_replaces_its_source_nor_anything_unasked) {
  EXPECT_THAT(refusal(source_), HasSubstr("is a file of the source"));
  ConvertOptions force;
  force.overwrite = true;
  EXPECT_THAT(refusal(source_, force), HasSubstr("is a file of the source"));
  std::filesystem::create_symlink("source.safetensors", directory_ / "link.safetensors");
  EXPECT_THAT(refusal(directory_ / "link.safetensors", force), HasSubstr("is a file of the source"));
  testing::write_file(directory_ / "there.safetensors", "x");
  EXPECT_THAT(refusal(directory_ / "there.safetensors"), HasSubstr("exists already"));
  EXPECT_EQ(refusal(directory_ / "there.safetensors", force), "");
}

TEST_F(ConvertTest, shards_never_replace_the_files_that_are_read) {
  std::filesystem::create_directory(directory_ / "m");
  ConvertOptions options;
  options.save.max_shard_size = 1 * kMiB;
  convert(source_, directory_ / "m" / "m.safetensors", options);
  std::filesystem::remove(directory_ / "m" / "m.safetensors.index.json");
  const auto before = testing::read_file(directory_ / "m" / "m-00001-of-00002.safetensors");
  options.dtype = DType::kF16;
  for (const bool overwrite : {false, true}) {
    options.overwrite = overwrite;
    EXPECT_THROW(convert(directory_ / "m", directory_ / "m" / "m.safetensors", options), Error);
    EXPECT_TRUE(testing::read_file(directory_ / "m" / "m-00001-of-00002.safetensors") == before);
  }
}

TEST_F(ConvertTest, shards_never_replace_the_index_of_what_is_read) {
  std::filesystem::create_directory(directory_ / "m");
  ConvertOptions options;
  options.save.max_shard_size = 1 * kMiB;
  options.overwrite = true;
  convert(source_, directory_ / "m" / "m.safetensors", options);
  // Shards of a second generation: the names of the first are free.
  convert(source_, directory_ / "m" / "m.safetensors", options);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "m" / "m-g2-00001-of-00002.safetensors"));
  const auto before = testing::read_file(directory_ / "m" / "m.safetensors.index.json");
  EXPECT_THROW(convert(directory_ / "m", directory_ / "m" / "m.safetensors", options), Error);
  EXPECT_TRUE(testing::read_file(directory_ / "m" / "m.safetensors.index.json") == before);
}

TEST_F(ConvertTest, shards_can_be_joined_beside_themselves) {
  std::filesystem::create_directory(directory_ / "m");
  ConvertOptions options;
  options.save.max_shard_size = 1 * kMiB;
  convert(source_, directory_ / "m" / "m.safetensors", options);
  convert(directory_ / "m", directory_ / "m" / "m.safetensors");
  EXPECT_EQ(Reader(directory_ / "m").files().size(), 2u);
  EXPECT_EQ(Reader(directory_ / "m" / "m.safetensors").tensors().size(), 2u);
}

TEST_F(ConvertTest, verification_finds_what_is_not_finite) {
  values_[5] = std::numeric_limits<float>::quiet_NaN();
  values_[1'400'000] = -std::numeric_limits<float>::infinity();
  Writer writer(directory_ / "nan.safetensors");
  writer.add("f", DType::kF32, {static_cast<std::int64_t>(values_.size())}, values_.data());
  writer.commit();
  VerifyOptions options;
  options.finite = true;
  const VerifyReport report = verify(directory_ / "nan.safetensors", options);
  EXPECT_FALSE(report.ok);
  EXPECT_EQ(report.tensors[0].not_finite, 2u);
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_THAT(report.problems[0], HasSubstr("tensor \"f\" has 2 elements that are NaN or infinite"));
  EXPECT_TRUE(verify(source_, options).ok);
}

TEST_F(ConvertTest, verification_sees_elements_that_no_block_boundary_respects) {
  // Data at an odd offset, with a NaN across every boundary of 2 MiB.
  std::string header =
      R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"f":{"dtype":"F32","shape":[2000000],"data_offsets":[1,8000001]}})";
  while (header.size() % 8 != 0) header += ' ';
  const std::uint64_t first = 8 + header.size() + 1;
  std::vector<float> data(2'000'000, 1.0f);
  for (std::uint64_t cut = 2 * kMiB; cut < 8'000'000; cut += 2 * kMiB)
    data[(cut - first) / 4] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::byte> bytes(8'000'001);
  std::memcpy(bytes.data() + 1, data.data(), 8'000'000);
  testing::write_safetensors(directory_ / "odd.safetensors", header, bytes);
  VerifyOptions options;
  options.finite = true;
  EXPECT_EQ(verify(directory_ / "odd.safetensors", options).tensors[1].not_finite, 3u);
}

TEST_F(ConvertTest, computed_checksums_are_those_of_the_bytes) {
  VerifyOptions options;
  options.compute = true;
  const VerifyReport report = verify(source_, options);
  for (const VerifiedTensor& tensor : report.tensors) {
    ASSERT_TRUE(tensor.crc32c.has_value());
    if (tensor.name == "i") {
      EXPECT_EQ(tensor.crc32c, 0x18D12335u);
    }
  }
}

TEST_F(ConvertTest, the_drive_can_be_measured_and_nothing_is_left) {
  const auto names = directory_.names();
  const Throughput read = measure_read(source_, {}, kGiB);
  EXPECT_EQ(read.bytes, std::filesystem::file_size(source_));
  const Throughput write = measure_write(directory_.path(), {}, WriteMethod::kAuto, 9 * kMiB + 5);
  EXPECT_EQ(write.bytes, 9 * kMiB + 5);
  EXPECT_EQ(directory_.names(), names);
}

}  // namespace
}  // namespace penstock
