#pragma once
// Root mean square normalisation (Zhang & Sennrich, 2019) over the last axis.

#include "ir/graph.h"

namespace graft {

// y = x * rstd * (w + offset), rstd = 1 / sqrt(mean(x^2) + eps); statistics in f32.
//   operands: x [..., d], w [d] (absent if attribute unweighted)
//   attributes: eps f64; offset f64 (1 for Gemma 2 and 3, else 0); unweighted;
//               round_before_weight: low-precision x is rounded after normalising and before w
//               (Llama's order); otherwise once at the end.
//   results: y [..., d], rstd f32 [...]
extern const Op kRmsNorm;

// operands: dy, x, w (absent if unweighted), rstd; attributes: those of kRmsNorm, and weight_grad;
// results: dx, and dw f32 [d] if weight_grad. Rounding is passed over: dw uses the f32 x * rstd.
extern const Op kRmsNormGrad;

struct RmsNormOptions {
  double eps = 1e-6;
  double offset = 0;
  bool round_before_weight = true;
};
Value rms_norm(Value x, Value weight, const RmsNormOptions& options);  // weight may be undefined

}  // namespace graft
