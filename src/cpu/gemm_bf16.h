#pragma once
// Products of bf16 matrices by the machine's bf16 instructions, through oneDNN's matmul primitive.

#include "cpu/gemm.h"

namespace graft::cpu {

// As gemm() for two bf16 operands, on the calling thread, which must have set OpenMP's team to one.
// Returns false, having done nothing, where oneDNN has no primitive for it. To be used only where
// has_native_bf16().
//
// Making a primitive costs a thousand times its use, so each thread keeps those it has made by
// their shapes: state, but none that changes a result. (oneDNN's scratchpad belongs to the thread
// that made the primitive, so they are not shared between threads.)
bool gemm_bf16(int64_t m, int64_t n, int64_t k, const MatrixRef& a, const MatrixRef& b, float* c,
               int64_t c_stride, float alpha, float beta);

}  // namespace graft::cpu
