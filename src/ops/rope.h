#pragma once
// Rotary position embedding (Su et al., 2021).

#include "ir/graph.h"

namespace graft {

// cos and sin of position * inverse frequency, times the attention factor, computed in f32.
//   positions s32 [B, S], inverse_frequencies f32 [D/2] -> cos, sin f32 [B, S, D/2]
struct RopeTable {
  Value cos, sin;
};
RopeTable rope_table(Value positions, Value inverse_frequencies, double attention_factor);

// Rotates the first 2 * cos.dim(-1) elements of each head and passes the rest through.
//   operands: x [B, S, H, D], cos, sin f32 [B, S, R/2], R <= D
//   attributes: interleaved (pairs are (2i, 2i+1), else (i, i + R/2));
//               inverse (rotates back: the gradient of rotating)
//   result: as x; computed in f32, rounded once.
extern const Op kRope;
Value rope(Value x, const RopeTable& table, bool interleaved = false);

}  // namespace graft
