#include "formats/sha256_x86.h"

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace graft::internal {

#if defined(__x86_64__)

bool sha256_instructions_available() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  const bool sha = ((b >> 29) & 1) != 0;
  return sha && __builtin_cpu_supports("sse4.1");
}

// The instructions hold the state as (a, b, e, f) and (c, d, g, h), highest word first.
__attribute__((target("sha,sse4.1,ssse3"))) void sha256_compress_x86(std::array<uint32_t, 8>& state,
                                                                     const uint8_t* blocks,
                                                                     size_t count) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  auto* words = reinterpret_cast<__m128i*>(state.data());
  const __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xB1);
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
  for (; count > 0; --count, blocks += 64) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i schedule[4];  // the last sixteen words
    for (int group = 0; group < 16; ++group) {
      __m128i& now = schedule[group % 4];
      if (group < 4) {
        const auto* from = reinterpret_cast<const __m128i*>(blocks) + group;
        now = _mm_shuffle_epi8(_mm_loadu_si128(from), big_endian);
      } else {
        const __m128i last = schedule[(group + 3) % 4];
        const __m128i seven_back = _mm_alignr_epi8(last, schedule[(group + 2) % 4], 4);
        const __m128i sum =
            _mm_add_epi32(_mm_sha256msg1_epu32(now, schedule[(group + 1) % 4]), seven_back);
        now = _mm_sha256msg2_epu32(sum, last);
      }
      const auto* constants = reinterpret_cast<const __m128i*>(kSha256Round.data()) + group;
      const __m128i added = _mm_add_epi32(now, _mm_loadu_si128(constants));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(added, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
}

#else

bool sha256_instructions_available() { return false; }

void sha256_compress_x86(std::array<uint32_t, 8>&, const uint8_t*, size_t) {
  GRAFT_CHECK(false, "not an x86 processor");
}

#endif

}  // namespace graft::internal
