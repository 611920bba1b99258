#pragma once
// The element-wise halves of attention, on tiles of scores in cache; the products between them are
// gemm's.

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/pack.h"

namespace graft::cpu {

// Which of a block's keys each row of a tile sees. Row r is at position r mod `positions`.
struct ScoreMask {
  size_t positions = 0, keys = 0;
  // Key j is seen from position i only if j <= first_position + i and j > first_position + i -
  // window; `first_position` counts from the block's first key. Not asked where `ranged` is false.
  int64_t first_position = 0, window = 0;
  bool ranged = false;
  const int32_t *query_segments = nullptr, *key_segments = nullptr;  // null: all of one segment
};

// The state of a tile's rows between blocks of keys (Milakov & Gimelshein 2018).
struct SoftmaxRows {
  size_t rows;
  float *maximum, *denominator;
  float* out;  // [rows, out_width], rescaled where the maximum rises; null before the first block
  size_t out_width;
};

// scores [rows, stride] of `mask.keys` keys, in: products with scaled queries; out: exp(score -
// maximum), 0 where a key is not seen. Returns the largest (capped) score seen, -inf if none.
float softmax_block(const ScoreMask& mask, float softcap, float* scores, size_t stride,
                    const SoftmaxRows& state);

// Rows first, ..., first + count - 1 of state.out over their denominators (0 where that is 0),
// rounded to rows of `to`.
void write_softmax_rows(const SoftmaxRows& state, size_t first, size_t count, void* to, DType dtype,
                        size_t stride);

// scores in: as above, out: p = exp(score - lse). d_weights in: d_out v^T, out: the gradient of the
// products, p (d_weights - delta) (1 - (score / softcap)^2). Rows whose lse is -inf see nothing.
void softmax_block_grad(const ScoreMask& mask, float softcap, float* scores, float* d_weights,
                        size_t stride, size_t rows, const float* lse, const float* delta);

// result[i] = sum over j of a[i * width + j] b[i][j].
void row_products(const float* a, const Rows& b, int64_t rows, int64_t width, float* result);

}  // namespace graft::cpu
