// Files so small that asking the filesystem what it can do would take longer than writing them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>

#include "base/bytes.h"
#include "penstock/convert.h"
#include "penstock/error.h"
#include "penstock/reader.h"
#include "penstock/writer.h"
#include "testing/errors.h"
#include "testing/files.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;

// Saves one tensor of `nbytes`.
Stats save_bytes(const std::filesystem::path& path, std::uint64_t nbytes, const SaveOptions& options = {}) {
  const auto bytes = testing::random_bytes(nbytes);
  Writer writer(path, options);
  writer.add("x", DType::kU8, {static_cast<std::int64_t>(nbytes)}, bytes.data());
  const Stats stats = writer.commit();
  const Tensor loaded = Reader(path).load_slice("x", {});
  EXPECT_TRUE(std::ranges::equal(loaded.bytes, bytes));
  return stats;
}

TEST(SmallFileTest, is_buffered_up_to_256_kib) {
  const TempDir directory;
  for (const char* name : {"m.safetensors", "m.flashpack"}) {
    const Stats small = save_bytes(directory / name, 256 * kKiB);
    EXPECT_EQ(small.path, "buffered");
    EXPECT_EQ(small.bytes_direct, 0u);
    EXPECT_EQ(small.reason, "a small file is quickest through the page cache");
  }
  const Stats large = save_bytes(directory / "m.flashpack", 256 * kKiB + 1);
  if (large.path != "direct") GTEST_SKIP() << "the filesystem of " << directory.path() << " refuses direct I/O";
  EXPECT_EQ(large.reason, "the filesystem takes direct writes");
}

TEST(SmallFileTest, goes_the_way_that_is_asked_for) {
  const TempDir directory;
  if (save_bytes(directory / "m.flashpack", kMiB).path != "direct")
    GTEST_SKIP() << "the filesystem of " << directory.path() << " refuses direct I/O";
  SaveOptions options;
  options.method = WriteMethod::kDirect;
  EXPECT_EQ(save_bytes(directory / "m.flashpack", 1000, options).path, "direct");
  options.method = WriteMethod::kBuffered;
  EXPECT_EQ(save_bytes(directory / "m.flashpack", 1000, options).reason,
            "writes through the page cache were asked for");
  options.method = WriteMethod::kAuto;
  options.landing = Landing::kStaged;
  EXPECT_EQ(save_bytes(directory / "m.flashpack", 1000, options).path, "direct");
}

TEST(SmallFileTest, carries_checksums_that_fit) {
  const TempDir directory;
  SaveOptions options;
  options.checksums = true;
  for (const bool durable : {true, false}) {
    options.durable = durable;
    for (const char* name : {"m.safetensors", "m.flashpack"}) {
      save_bytes(directory / name, 1000, options);
      const VerifyReport report = verify(directory / name);
      EXPECT_TRUE(report.ok);
      EXPECT_TRUE(report.had_checksums);
      EXPECT_NE(report.tensors[0].crc32c.value_or(0), 0u);
    }
  }
}

TEST(SmallFileTest, its_space_is_not_reserved_and_a_limit_is_met_by_the_write) {
  const TempDir directory;
  testing::write_file(directory / "m.flashpack", "old");
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit{4096, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &limit);
  const Error small = error_of([&] { save_bytes(directory / "m.flashpack", 256 * kKiB); });
  const Error large = error_of([&] { save_bytes(directory / "m.flashpack", 256 * kKiB + 1); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(small.what(), HasSubstr("write of "));
  EXPECT_THAT(small.what(), HasSubstr("File too large"));
  EXPECT_THAT(large.what(), HasSubstr("needs 2"));
  EXPECT_EQ(testing::read_file(directory / "m.flashpack").size(), 3u);
  EXPECT_THAT(directory.names(), ElementsAre("m.flashpack"));
}

}  // namespace
}  // namespace penstock
