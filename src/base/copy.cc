#include "base/copy.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/bytes.h"

namespace penstock {

#if defined(__SSE2__)

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t nbytes) noexcept {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kWorthIt = 64 * kKiB;
  if (nbytes < kWorthIt) {
    std::memcpy(to, from, nbytes);
    return;
  }
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  const std::size_t lines = (nbytes - head) / kLine;
  std::memcpy(to, from, head);
  auto* target = reinterpret_cast<__m128i*>(to + head);
  const auto* source = reinterpret_cast<const __m128i*>(from + head);
  for (std::size_t i = 0; i < lines; ++i, target += 4, source += 4) {
    // A whole line at a time, so that it leaves in one go.
    const __m128i first = _mm_loadu_si128(source);
    const __m128i second = _mm_loadu_si128(source + 1);
    const __m128i third = _mm_loadu_si128(source + 2);
    const __m128i fourth = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, first);
    _mm_stream_si128(target + 1, second);
    _mm_stream_si128(target + 2, third);
    _mm_stream_si128(target + 3, fourth);
  }
  _mm_sfence();  // other threads, and drives, see it all from here on
  const std::size_t done = head + lines * kLine;
  std::memcpy(to + done, from + done, nbytes - done);
}

#else

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t nbytes) noexcept {
  copy_portably(to, from, nbytes);
}

#endif

void copy_portably(std::byte* to, const std::byte* from, std::size_t nbytes) noexcept {
  std::memcpy(to, from, nbytes);
}

}  // namespace penstock
