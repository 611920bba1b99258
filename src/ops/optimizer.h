#pragma once
// The optimiser's update and the sums of squares that clipping needs.

#include "ir/graph.h"

namespace graft {

// AdamW (Loshchilov & Hutter 2019) with bias correction and decoupled decay:
//   g = gradient * clip;  m' = b1 m + (1 - b1) g;  v' = b2 v + (1 - b2) g^2
//   p' = p - lr * decay * p - lr * (m' / c1) / (sqrt(v' / c2) + eps)
// all predicated on `finite`: where it is false p, m and v come out bit for bit as they went in.
//   operands: p, m, v, gradient: f32 of one shape; clip, learning_rate, c1 (= 1 - b1^t),
//             c2 (= 1 - b2^t): f32 []; finite: bool []
//   attributes: beta1, beta2, epsilon, weight_decay: f64
//   results: p', m', v'
extern const Op kAdamW;

// x float of any shape -> f32 [], the sum of squares in an order fixed by the shape alone.
extern const Op kSumSquares;

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
};
struct AdamWOperands {
  Value parameter, m, v, gradient;
  Value clip, learning_rate, c1, c2, finite;
};
struct AdamWResult {
  Value parameter, m, v;
};
AdamWResult adamw(const AdamWOperands& operands, const AdamWOptions& options);
Value sum_squares(Value x);

}  // namespace graft
