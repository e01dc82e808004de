// Loads into memory that comes in huge pages, in small ones, or in both: the same bytes, whichever it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <span>
#include <string>

#include "base/bytes.h"
#include "memory/huge_pages.h"
#include "penstock/doctor.h"
#include "penstock/measure.h"
#include "penstock/reader.h"
#include "penstock/writer.h"
#include "testing/files.h"

namespace penstock {
namespace {

using testing::TempDir;

constexpr std::uint64_t kBlock = 2 * kMiB;

class LandingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (huge_pages_setting() == "never") GTEST_SKIP() << "this process has no transparent huge pages";
    save(path_, 1);
    drop_page_cache(path_);
  }

  // Tensors that begin and end anywhere, with little ones between.
  void save(const std::filesystem::path& path, std::uint32_t seed, SaveOptions options = {}) {
    options.checksums = true;
    Writer writer(path, options);
    for (const std::uint64_t nbytes : {9 * kMiB + 512, 20ul, 30 * kMiB, 100 * kKiB, 7ul, 12 * kMiB + 3}) {
      const std::string name = std::to_string(seed) + "." + std::to_string(nbytes);
      tensors_[name] = testing::random_bytes(nbytes, seed++);
      writer.add(name, DType::kU8, {static_cast<std::int64_t>(nbytes)}, tensors_[name].data());
    }
    writer.commit();
  }

  void expect_right(const Tensor& tensor) const {
    const auto& expected = tensors_.at(tensor.name);
    ASSERT_EQ(tensor.bytes.size(), expected.size());
    EXPECT_EQ(std::memcmp(expected.data(), tensor.bytes.data(), expected.size()), 0) << tensor.name;
  }

  Stats load(const LoadOptions& options) const {
    const LoadResult result = Reader(path_).load(options);
    EXPECT_EQ(result.tensors.size(), tensors_.size());
    for (const Tensor& tensor : result.tensors) expect_right(tensor);
    return result.stats;
  }

  // Directly, in blocks that huge pages can take.
  static LoadOptions options(bool insist = false) {
    LoadOptions options;
    options.cache = CachePolicy::kDirect;
    options.io.block_size = kBlock;
    options.pool = MemoryPool::create({.huge_pages = insist});
    return options;
  }

  TempDir directory_;
  const std::filesystem::path path_ = directory_ / "model.safetensors";
  std::map<std::string, std::vector<std::byte>> tensors_;
};

// How much of the memory that a load's tensors lie in is in huge pages, as the kernel says.
std::uint64_t huge_bytes_of(std::span<const Tensor> tensors) {
  std::uintptr_t low = ~std::uintptr_t{0};
  std::uintptr_t high = 0;
  for (const Tensor& tensor : tensors) {
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.bytes.data());
    low = std::min(low, begin);
    high = std::max(high, begin + tensor.bytes.size());
  }
  std::uint64_t huge = 0;
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    unsigned long kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) inside = begin < high && low < end;
    if (inside && std::sscanf(line.c_str(), "AnonHugePages: %lu", &kib) == 1) huge += kib * kKiB;
  }
  return huge;
}

TEST_F(LandingTest, huge_pages_are_landed_on_in_place) {
  const LoadOptions insisting = options(/*insist=*/true);
  for (int i = 0; i < 2; ++i) {  // the second time into the same memory, whose pages are known
    drop_page_cache(path_);
    const LoadResult result = Reader(path_).load(insisting);
    const Stats& stats = result.stats;
    for (const Tensor& tensor : result.tensors) expect_right(tensor);
    if (stats.path != "direct") GTEST_SKIP() << "the filesystem of " << directory_.path() << " refuses direct I/O";
    const std::uint64_t huge = huge_bytes_of(result.tensors);
    EXPECT_LE(stats.bytes_direct - stats.bytes_copied, huge);
    if (huge == 0) GTEST_SKIP() << "the kernel has no huge pages to give";
    EXPECT_NE(stats.landing, "staged");
    EXPECT_NE(stats.reason.find("huge pages"), std::string::npos) << stats.reason;
    // Some pages may stay small, where memory is in pieces, or be taken for small, where another fault came between.
    EXPECT_GT(stats.bytes_direct - stats.bytes_copied, huge / 2);
    if (stats.bytes_copied < 2 * kBlock) {
      EXPECT_EQ(stats.landing, "in place");
    }
  }
}

TEST_F(LandingTest, whether_they_come_or_not_the_bytes_are_right) {
  const LoadOptions patient = options();
  for (int i = 0; i < 3; ++i) {  // the second load has the memory of the first
    const Stats stats = load(patient);
    EXPECT_EQ(stats.bytes_direct + stats.bytes_buffered, stats.bytes);
    EXPECT_LE(stats.bytes_copied, stats.bytes_direct);
  }
}

TEST_F(LandingTest, checksums_and_copies_from_the_page_cache_see_the_same_bytes) {
  for (const CachePolicy cache : {CachePolicy::kDirect, CachePolicy::kBuffered}) {
    for (const Verify verify : {Verify::kOff, Verify::kAny}) {
      for (const bool insist : {false, true}) {
        LoadOptions wanted = options(insist);
        wanted.cache = cache;
        wanted.verify = verify;
        load(wanted);
        load(wanted);
      }
    }
  }
}

TEST_F(LandingTest, staging_can_be_asked_for) {
  LoadOptions staged = options(/*insist=*/true);
  staged.landing = Landing::kStaged;
  const Stats stats = load(staged);
  EXPECT_EQ(stats.bytes_copied, stats.bytes_direct);
}

TEST_F(LandingTest, tensors_that_are_converted_are_staged_and_pages_are_not_blamed) {
  const auto path = directory_ / "f32.safetensors";
  Writer writer(path);
  const auto bytes = testing::random_bytes(32 * kMiB, 9);
  writer.add("one", DType::kF32, {static_cast<std::int64_t>(bytes.size() / 4)}, bytes.data());
  writer.commit();
  drop_page_cache(path);
  LoadOptions converting = options(/*insist=*/true);
  converting.dtype = DType::kBF16;
  const Stats stats = Reader(path).load(converting).stats;
  if (stats.path != "direct") GTEST_SKIP() << "the filesystem of " << directory_.path() << " refuses direct I/O";
  EXPECT_EQ(stats.landing, "staged");
  EXPECT_EQ(stats.reason.find("huge pages"), std::string::npos) << stats.reason;
}

TEST_F(LandingTest, streams_land_there_too) {
  for (const bool insist : {false, true}) {
    LoadOptions wanted = options(insist);
    wanted.max_buffer = 160 * kMiB;  // two batches, of which the last is too small for huge pages
    TensorStream stream = Reader(path_).stream(wanted);
    std::size_t count = 0;
    while (const auto tensor = stream.next()) {
      expect_right(*tensor);
      ++count;
    }
    EXPECT_EQ(count, tensors_.size());
    const Stats& stats = stream.stats();
    if (stats.bytes_copied < stats.bytes_direct / 2) {
      EXPECT_NE(stats.landing, "staged") << stats.reason;
    }
  }
}

TEST_F(LandingTest, files_too_small_for_huge_pages_may_lie_beside_large_ones) {
  const auto shards = directory_ / "shards.safetensors.index.json";
  tensors_.clear();
  SaveOptions sharded;
  sharded.max_shard_size = 31 * kMiB;
  save(directory_ / "shards.safetensors", 50, sharded);
  const LoadResult result = Reader(shards).load(options());
  EXPECT_EQ(result.tensors.size(), tensors_.size());
  for (const Tensor& tensor : result.tensors) expect_right(tensor);
}

TEST_F(LandingTest, the_doctor_leaves_open_which_it_will_be) {
  const Diagnosis diagnosis = diagnose(path_, options());
  if (!diagnosis.cold || diagnosis.cold->stats.path != "direct") {
    GTEST_SKIP() << "the filesystem of " << directory_.path() << " refuses direct I/O";
  }
  EXPECT_EQ(diagnosis.cold->stats.landing, "in place or staged");
  EXPECT_NE(diagnosis.cold->stats.reason.find("huge pages"), std::string::npos) << diagnosis.cold->stats.reason;
}

}  // namespace
}  // namespace penstock
