#pragma once
// Cross entropy together with the output head: logits of a batch never exist whole.

#include "ops/unpack.h"

namespace graft {

// For each row n: logits = cap(h[n] W^T), nll[n] = logsumexp(logits) - logits[targets[n]] in f32
// (nats). Rows whose target is negative are ignored: nll 0, no gradient, no work counted on.
//   operands: h [N, d], W [V, d] (or packed, see ops/unpack.h), targets s32 [N], weights f32 [N]
//   attributes: softcap f64 (0: none)
//   results: loss f32 [] = sum_n weights[n] * nll[n], nll f32 [N]
extern const Op kCrossEntropy;

// The same results, and in the same pass the gradients of `loss` for a unit cotangent, so that no
// GEMM of the head is computed twice: dh [N, d] of h's type, and with attribute weight_grad dW f32
// [V, d]. Differentiable through `loss` alone.
extern const Op kCrossEntropyWithGrad;

struct CrossEntropyResult {
  Value loss, nll;
};
CrossEntropyResult cross_entropy(Value h, const Weight& head, Value targets, Value weights,
                                 double softcap = 0);

}  // namespace graft
