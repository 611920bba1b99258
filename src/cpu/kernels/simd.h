#pragma once
// Which instruction sets the vector loops are compiled for. Included before Highway everywhere, so
// that every file makes the same choice. SSSE3 is left out (nothing since 2008 has it and not
// SSE4), which keeps a quarter off the compile time; and vectors whose size the compiler does not
// know, which cannot be held in arrays.

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

#include <cstdint>

namespace graft::cpu {

// A bf16 as stored, distinct from other 16-bit words.
struct BFloat16 {
  uint16_t bits;
};

}  // namespace graft::cpu
