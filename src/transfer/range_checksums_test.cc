#include "transfer/range_checksums.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/checksum.h"

namespace penstock {
namespace {

std::vector<std::byte> some_bytes(std::size_t count) {
  std::mt19937 random(5);
  std::vector<std::byte> bytes(count);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

TEST(RangeChecksums, ranges_within_each_other_out_of_pieces_in_any_order) {
  const auto bytes = some_bytes(10'000);
  const std::vector<ByteRange> ranges = {{0, 10'000}, {0, 0}, {10'000, 10'000}, {1, 2}, {4096, 8192}, {5000, 9999}};
  std::vector<std::uint64_t> cuts;
  for (const ByteRange& range : ranges) cuts.insert(cuts.end(), {range.begin, range.end});
  RangeChecksums checksums(cuts);
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t piece = thread; piece * 700 < bytes.size(); piece += 3) {
        const std::size_t at = piece * 700;
        checksums.add(at, std::span(bytes).subspan(at, std::min<std::size_t>(700, bytes.size() - at)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  checksums.finish();
  for (const ByteRange& range : ranges) {
    EXPECT_EQ(checksums.of(range), crc32c(std::span(bytes).subspan(range.begin, range.size()))) << range.begin;
  }
}

TEST(RangeChecksums, a_file_of_nothing) {
  RangeChecksums checksums({0});
  checksums.finish();
  EXPECT_EQ(checksums.of({0, 0}), 0);
}

}  // namespace
}  // namespace penstock
