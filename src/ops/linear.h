#pragma once
// Linear layers, plain or with a low-rank adapter, and their gradient.

#include <vector>

#include "ir/graph.h"
#include "ops/unpack.h"

namespace graft {

// y = x W^T (+ bias) (+ scale * (x_lora A^T) B^T), one composite, so that in low precision the
// low-rank term joins the base product in the f32 accumulator and the sum is rounded once.
//   operands: x [..., in], W [out, in] (or packed, see ops/unpack.h), then bias [out] if attribute
//   has_bias, then
//             A f32 [r, in], B f32 [out, r], scale f32 [] if has_lora, then x_lora [..., in] if
//             has_lora_input (what the low-rank branch reads instead of x: x after dropout).
//   results:  y [..., out] of x's type; with has_lora also u = x_lora A^T (before scale),
//             f32 [..., r], through which no gradient flows.
extern const Op kLinear;

// The gradient of y with respect to x: dx = dy W (+ v A), with v = scale * dy B.
//   operands: dy [..., out], W [out, in], then A, B, scale if has_lora.
//   attribute separate_lora: v A is not added to dx (it belongs to x_lora) but is a result itself.
//   results:  dx [..., in]; with has_lora also v f32 [..., r]; with separate_lora also
//             dx_lora [..., in].
extern const Op kLinearInputGrad;

struct LoraOperands {
  Value a, b;   // f32 [r, in], [out, r]
  Value scale;  // f32 []
  Value input;  // optional: what the low-rank branch reads instead of x
};

// A packed weight takes no gradient.
Value linear(Value x, const Weight& weight, Value bias = {}, const LoraOperands* lora = nullptr);

}  // namespace graft
