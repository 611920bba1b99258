#pragma once
// The softmax of cross entropy on tiles of transposed logits [vocabulary, rows]: rows of the batch
// lie along the lanes, so that maxima and sums need nothing across lanes.

#include <cstddef>
#include <cstdint>

namespace graft::cpu {

// What is known of each row between tiles; arrays of `rows` elements.
struct LossRows {
  size_t rows;
  const int32_t* targets;
  float* maximum;       // of all logits so far
  float* others;        // sum of exp(logit - maximum) over all of them but the target's
  float* target_logit;  // (capped) logit of the target, once it has been met
  float* rescale;       // set by each tile: exp(old maximum - new maximum)
};

// A tile [count, stride] of logits of the vocabulary's entries first, first + 1, ...; they are
// replaced by exp(logit - maximum), times the slope of the soft cap, and by 0 at the rows' targets.
void loss_tile(const LossRows& state, float softcap, int32_t first, size_t count, float* tile,
               size_t stride);

// tile[v][r] *= factor[r].
void scale_columns(const float* factor, float* tile, size_t stride, size_t count, size_t rows);

}  // namespace graft::cpu
