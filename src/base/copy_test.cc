#include "base/copy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace penstock {
namespace {

TEST(CopyTest, every_byte_and_no_other_is_copied) {
  constexpr std::size_t kMargin = 128;
  constexpr std::byte kUntouched{0xee};
  for (const std::size_t nbytes : {0u, 1u, 63u, 65535u, 65536u, 65537u, 65600u, 300001u}) {
    std::vector<std::byte> source(nbytes + kMargin);
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 2654435761u >> 24);
    for (const std::size_t from : {0u, 1u, 16u, 63u}) {
      for (const std::size_t to : {0u, 1u, 17u, 64u, 127u}) {
        std::vector<std::byte> target(nbytes + 2 * kMargin, kUntouched);
        std::vector<std::byte> expected = target;
        copy_past_caches(target.data() + to, source.data() + from, nbytes);
        for (std::size_t i = 0; i < nbytes; ++i) expected[to + i] = source[from + i];
        EXPECT_TRUE(target == expected) << nbytes << " from " << from << " to " << to;
      }
    }
  }
}

TEST(CopyTest, the_portable_form_copies_the_same_bytes) {
  std::vector<std::byte> source(200003);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 2246822519u >> 24);
  for (const std::size_t nbytes : {0u, 64u, 65535u, 65536u, 100001u, 200000u}) {
    std::vector<std::byte> special(source.size());
    std::vector<std::byte> portable(source.size());
    copy_past_caches(special.data() + 1, source.data() + 3, nbytes);
    copy_portably(portable.data() + 1, source.data() + 3, nbytes);
    EXPECT_TRUE(special == portable) << nbytes;
  }
}

}  // namespace
}  // namespace penstock
