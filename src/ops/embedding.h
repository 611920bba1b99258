#pragma once
// Token embedding: rows of a table, and the gradient that adds cotangents into rows.

#include "ops/unpack.h"

namespace graft {

// operands: table [V, d] (or packed, see ops/unpack.h), ids s32 [...]; attribute dtype of the
// result; result [..., d].
extern const Op kEmbedding;
// operands: dy [..., d], ids s32 [...]; attribute rows V; result f32 [V, d]. Rows add in index
// order; an id outside [0, V) reads the nearest row (kGather) and adds to none (kScatterAdd).
extern const Op kEmbeddingGrad;

Value embedding(const Weight& table, Value ids, DType dtype);

}  // namespace graft
