#include "base/name_hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace penstock {
namespace {

TEST(NameHashTest, is_siphash_with_one_round_and_three) {
  // Of the reference implementation, with the key of its test vectors.
  constexpr HashKey kKey{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  std::string text;
  for (char byte = 0; byte < 15; ++byte) text += byte;
  EXPECT_EQ(siphash13(kKey, ""), 0xabac0158050fc4dcU);
  EXPECT_EQ(siphash13(kKey, text), 0xd320d86d2a519956U);
}

TEST(NameHashTest, names_that_collide_in_std_hash_do_not_collide_here) {
  // After the first eight bytes come those that lead libstdc++'s hash back to one state.
  const std::string names[] = {"`Q7ihr8Q#iDw;u*w", "x4pEKZ8d#I;,i`Rk", "EOll99mQG:_@q`Lm"};
  std::set<std::size_t> hashes;
  for (const std::string& name : names) hashes.insert(NameHash{}(name));
  EXPECT_EQ(hashes.size(), 3U);
}

TEST(NameHashTest, is_the_same_for_the_same_name) {
  EXPECT_EQ(NameHash{}(std::string("layer.0.weight")), NameHash{}("layer.0.weight"));
}

}  // namespace
}  // namespace penstock
