#pragma once
// Logits and loss of given token ids, whole: for inspection and for comparing with other programs.

#include "base/tensor.h"
#include "train/compute.h"
#include "train/state.h"

namespace graft {

inline constexpr int32_t kIgnoredLabel = -100;  // a label that is not trained, as in transformers

struct ScoreInput {
  Tensor ids;        // s32 [B, S]
  Tensor lengths;    // s32 [B]: real tokens of each row; the rest is padding
  Tensor segments;   // s32 [B, S]: tokens see their own segment only; 0 is padding
  Tensor positions;  // s32 [B, S]
  Tensor labels;     // s32 [B, S], aligned with ids: position t predicts labels[t + 1]
};                   // all but ids optional

struct Scores {
  Tensor logits;    // f32 [B, S, V]
  double loss = 0;  // mean nats over all labels that are not kIgnoredLabel; NaN if there is none
};

Scores score(const ModelState& state, const Compute& compute, const ScoreInput& input);

}  // namespace graft
