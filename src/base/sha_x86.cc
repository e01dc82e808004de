#include "base/sha_x86.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock {

#if defined(__x86_64__)

bool has_sha_instructions() noexcept {
  // __builtin_cpu_supports() knows no "sha": CPUID leaf 7, EBX bit 29.
  unsigned leaf = 7;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  unsigned most = 0;
  asm("cpuid" : "=a"(most), "=b"(ebx), "=c"(ecx), "=d"(edx) : "a"(0), "c"(0));
  if (most < leaf) return false;
  asm("cpuid" : "+a"(leaf), "=b"(ebx), "=c"(ecx), "=d"(edx) : "c"(0));
  return ((ebx >> 29) & 1) != 0 && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3");
}

// The instructions hold the state as (F E B A) and (H G D C), lowest word first, and do two rounds at a time.
__attribute__((target("sha,sse4.1,ssse3"))) void sha256_blocks_x86(std::span<std::uint32_t, 8> state,
                                                                   const std::byte* bytes, std::size_t count) noexcept {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i dcba = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state.data()));
  const __m128i hgfe = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state.data() + 4));
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xB1);
  const __m128i efgh = _mm_shuffle_epi32(hgfe, 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
  for (; count > 0; --count, bytes += 64) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i w[4];  // the last 16 words of the schedule
#pragma GCC unroll 16
    for (int t = 0; t < 16; ++t) {
      __m128i& next = w[t % 4];
      if (t < 4) {
        next = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes) + t), swap);
      } else {
        const __m128i w7 = _mm_alignr_epi8(w[(t + 3) % 4], w[(t + 2) % 4], 4);  // t - 7, of each of the four
        next = _mm_sha256msg1_epu32(next, w[(t + 1) % 4]);
        next = _mm_sha256msg2_epu32(_mm_add_epi32(next, w7), w[(t + 3) % 4]);
      }
      const auto* constants = reinterpret_cast<const __m128i*>(kSha256Constants.data()) + t;
      const __m128i sum = _mm_add_epi32(next, _mm_load_si128(constants));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data()), _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data() + 4), _mm_alignr_epi8(dchg, feba, 8));
}

#else

bool has_sha_instructions() noexcept {
  return false;
}
void sha256_blocks_x86(std::span<std::uint32_t, 8> /*state*/, const std::byte* /*bytes*/,
                       std::size_t /*count*/) noexcept {}

#endif

}  // namespace penstock
