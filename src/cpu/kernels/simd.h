#pragma once
// Which instruction sets the vector loops are compiled for. Included before Highway everywhere, so that
// every file makes the same choice: SSSE3 is left out (nothing since 2008 has it and not SSE4), which
// keeps a quarter off the compile time.

#define HWY_DISABLED_TARGETS HWY_SSSE3

#include <cstdint>

namespace graft::cpu {

// A bf16 as stored, distinct from other 16-bit words.
struct BFloat16 {
  uint16_t bits;
};

}  // namespace graft::cpu
