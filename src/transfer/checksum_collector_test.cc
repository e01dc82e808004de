#include "transfer/checksum_collector.h"

#include <gtest/gtest.h>

#include "base/checksum.h"

namespace penstock {
namespace {

TEST(ChecksumCollector, a_piece_that_came_before_counts_once) {
  const std::string text = "123456789";
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  ChecksumCollector collector;
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    collector.add(ChecksumKind::kCrc32c, 1, begin, bytes + begin, end - begin);
  };
  add(4, 9);
  add(4, 6);
  add(6, 9);
  add(0, 4);
  add(0, 4);
  const std::vector<std::uint32_t> found = collector.finish(3);
  EXPECT_EQ(found, (std::vector<std::uint32_t>{0, 0xE3069283, 0}));
}

}  // namespace
}  // namespace penstock
