#include "base/name_hash.h"

#include <sys/random.h>

#include <bit>
#include <chrono>
#include <cstring>

namespace penstock {
namespace {

struct SipState {
  std::uint64_t v0, v1, v2, v3;

  void round() noexcept {
    v0 += v1;
    v1 = std::rotl(v1, 13) ^ v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1;
    v1 = std::rotl(v1, 17) ^ v2;
    v2 = std::rotl(v2, 32);
  }

  void add(std::uint64_t word) noexcept {
    v3 ^= word;
    round();
    v0 ^= word;
  }
};

HashKey draw_key() noexcept {
  HashKey key{};
  // Without a source of random numbers the time has to do.
  if (::getrandom(key.data(), sizeof key, 0) != static_cast<ssize_t>(sizeof key)) {
    key[0] = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    key[1] = reinterpret_cast<std::uintptr_t>(&key);
  }
  return key;
}

}  // namespace

std::uint64_t siphash13(const HashKey& key, std::string_view text) noexcept {
  SipState state{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
                 key[1] ^ 0x7465646279746573};
  std::size_t at = 0;
  for (; text.size() - at >= sizeof(std::uint64_t); at += sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + at, sizeof word);
    state.add(word);
  }
  std::uint64_t last = std::uint64_t{text.size()} << 56;
  for (std::size_t i = 0; at + i < text.size(); ++i) {
    last |= std::uint64_t{static_cast<unsigned char>(text[at + i])} << (8 * i);
  }
  state.add(last);
  state.v2 ^= 0xFF;
  for (int i = 0; i < 3; ++i) state.round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

std::size_t NameHash::operator()(std::string_view name) const noexcept {
  static const HashKey key = draw_key();
  return siphash13(key, name);
}

}  // namespace penstock
