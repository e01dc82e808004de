#include "base/sha.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "base/sha_x86.h"

namespace penstock {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

template <typename Sha>
std::string digest(std::string_view text) {
  Sha sha;
  sha.update(bytes_of(text));
  return sha.finish();
}

constexpr std::string_view kTwoBlocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";

TEST(Sha, digests_are_those_of_the_standard) {
  EXPECT_EQ(digest<Sha256>(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest<Sha256>("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest<Sha256>(kTwoBlocks), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digest<Sha1>(""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
  EXPECT_EQ(digest<Sha1>("abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(digest<Sha1>(kTwoBlocks), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
}

TEST(Sha, a_million_letters_in_pieces_of_any_size) {
  const std::string letters(1'000'000, 'a');
  for (const std::size_t piece : {1UL, 63UL, 64UL, 65UL, 1000UL, 1'000'000UL}) {
    Sha256 sha256;
    Sha1 sha1;
    for (std::size_t at = 0; at < letters.size(); at += piece) {
      sha256.update(bytes_of(std::string_view(letters).substr(at, piece)));
      sha1.update(bytes_of(std::string_view(letters).substr(at, piece)));
    }
    EXPECT_EQ(sha256.finish(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    EXPECT_EQ(sha1.finish(), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
  }
}

TEST(Sha, the_processors_instructions_and_the_portable_form_agree) {
  if (!has_sha_instructions()) GTEST_SKIP() << "this processor has no instructions for SHA-256";
  std::vector<std::byte> bytes(64 * 7);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + i / 64);
  for (std::size_t count = 0; count <= 7; ++count) {
    std::array<std::uint32_t, 8> portable{1, 2, 3, 4, 5, 6, 7, 0xFFFFFFFF};
    std::array<std::uint32_t, 8> quick = portable;
    sha256_blocks_portable(portable, bytes.data(), count);
    sha256_blocks_x86(quick, bytes.data(), count);
    EXPECT_EQ(portable, quick) << count;
  }
}

}  // namespace
}  // namespace penstock
