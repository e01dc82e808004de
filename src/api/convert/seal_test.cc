#include "penstock/seal.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "base/bytes.h"
#include "penstock/convert.h"
#include "penstock/error.h"
#include "penstock/reader.h"
#include "penstock/writer.h"
#include "testing/errors.h"
#include "testing/files.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;

constexpr std::uint64_t kSealTestBlock = 4096;

class SealTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SaveOptions save;
    save.shared = SharedTensors::kDuplicate;
    Writer writer(path_, save);
    writer.add("a", DType::kF32, {50'000}, values_.data());
    writer.add("b", DType::kF32, {7}, values_.data());
    writer.add("c", DType::kU8, {30'001}, values_.data());
    writer.commit();
    SealOptions options;
    options.block_size = kSealTestBlock;
    report_ = seal(path_, options);
  }

  void flip(std::uint64_t bit) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(bit / 8));
    const auto byte = static_cast<char>(file.get() ^ (1 << bit % 8));
    file.seekp(static_cast<std::streamoff>(bit / 8));
    file.put(byte);
  }

  std::string refusal_of_load(const LoadOptions& options) const {
    try {
      Reader(path_).load(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

  static LoadOptions verified(Verify verify = Verify::kSeal) {
    LoadOptions options;
    options.verify = verify;
    return options;
  }

  TempDir directory_;
  const std::filesystem::path path_ = directory_ / "m.safetensors";
  const std::vector<float> values_ = std::vector<float>(50'000, 1.5F);
  SealReport report_;
};

TEST_F(SealTest, lies_beside_its_file) {
  ASSERT_EQ(report_.files.size(), 1);
  EXPECT_EQ(report_.files[0].seal, directory_ / "m.safetensors.seal.json");
  EXPECT_EQ(report_.bytes, std::filesystem::file_size(path_));
  EXPECT_EQ(report_.files[0].sha256, "");
}

TEST_F(SealTest, a_whole_load_reads_each_byte_of_the_file_once) {
  for (const CachePolicy cache : {CachePolicy::kCopy, CachePolicy::kDirect, CachePolicy::kBuffered}) {
    LoadOptions options = verified();
    options.cache = cache;
    std::uint64_t total = 0;
    options.progress = [&](const Progress& now) {
      total = now.bytes_total;
      return true;
    };
    EXPECT_EQ(Reader(path_).load(options).tensors.size(), 3);
    EXPECT_EQ(total, std::filesystem::file_size(path_));
  }
}

TEST_F(SealTest, any_flipped_bit_is_found_with_its_block) {
  std::mt19937_64 random(11);
  const std::uint64_t size = std::filesystem::file_size(path_);
  const TensorInfo a = *Reader(path_).find("a");
  for (int i = 0; i < 300; ++i) {
    // The header's own damage is mostly the parser's to find.
    const std::uint64_t bit = a.offset * 8 + random() % ((size - a.offset) * 8);
    flip(bit);
    const std::uint64_t begin = align_down(bit / 8, kSealTestBlock);
    const std::string place = fmt::format(": bytes {} to {} (tensor ", begin, std::min(begin + kSealTestBlock, size));
    ASSERT_THAT(refusal_of_load(verified()), HasSubstr(place)) << bit;
    const VerifyReport report = verify(path_);
    ASSERT_EQ(report.problems.size(), 1);
    ASSERT_THAT(report.problems[0], HasSubstr(place));
    for (const VerifiedTensor& tensor : report.tensors) {
      const TensorInfo info = *Reader(path_).find(tensor.name);
      ASSERT_EQ(tensor.ok, bit / 8 < info.offset || bit / 8 >= info.offset + info.nbytes) << tensor.name;
    }
    flip(bit);
  }
  EXPECT_EQ(refusal_of_load(verified()), "none");
}

TEST_F(SealTest, tensors_of_a_filtered_load_are_checked_alone) {
  flip(Reader(path_).find("c")->offset * 8);
  LoadOptions options = verified();
  options.select = [](const TensorInfo& tensor) { return tensor.name != "c"; };
  EXPECT_EQ(refusal_of_load(options), "none");
  options.select = [](const TensorInfo& tensor) { return tensor.name != "a"; };
  EXPECT_THAT(refusal_of_load(options), HasSubstr("tensor \"c\" is corrupt: its CRC-32C is"));
}

TEST_F(SealTest, load_into_and_streams_check_it_too) {
  flip(Reader(path_).find("c")->offset * 8);
  const Reader reader(path_);
  std::vector<std::byte> memory(28);
  const std::vector<Target> fine = {{"b", memory, {}, {}}};
  EXPECT_EQ(reader.load_into(fine, verified()).tensors, 1);
  std::vector<std::byte> more(30'001);
  const std::vector<Target> bad = {{"c", more, {}, {}}};
  EXPECT_THAT(testing::error_of([&] { reader.load_into(bad, verified()); }).what(),
              HasSubstr("tensor \"c\" is corrupt"));
  for (const std::uint64_t max_buffer : {std::uint64_t{1}, std::uint64_t{256} << 20}) {
    LoadOptions options = verified();
    options.max_buffer = max_buffer;
    TensorStream stream = reader.stream(options);
    const auto error = testing::error_of([&] {
      while (auto tensor = stream.next()) EXPECT_NE(tensor->name, "c");
    });
    EXPECT_THAT(error.what(), HasSubstr("tensor \"c\""));
  }
}

TEST_F(SealTest, a_save_takes_the_seal_away) {
  Writer writer(path_);
  writer.add("a", DType::kF32, {3}, values_.data());
  writer.commit();
  EXPECT_FALSE(std::filesystem::exists(report_.files[0].seal));
  EXPECT_THAT(refusal_of_load(verified()),
              HasSubstr("has no seal to be verified against; `penstock seal` makes a seal"));
  EXPECT_THAT(refusal_of_load(verified(Verify::kAny)), HasSubstr("it carries no checksums, and has no seal"));
}

}  // namespace
}  // namespace penstock
