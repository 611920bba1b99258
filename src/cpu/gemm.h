#pragma once
// Matrix products on the host through oneDNN, one call on one thread; callers split the output.

#include <cstdint>

#include "base/dtype.h"

namespace graft::cpu {

// A row-major matrix or its transpose: element (i, j) is data[i * stride + j], or data[j * stride +
// i] if transposed.
struct MatrixRef {
  const void* data;
  DType dtype;     // kF32 or kBF16
  int64_t stride;  // elements between rows as stored
  bool transposed = false;
};

// c[m, n] = alpha * a[m, k] b[k, n] + beta * c, c f32 row-major; bf16 operands accumulate in f32.
// Runs on the calling thread alone, whatever OpenMP's settings. The bits depend on m, n, k and
// strides only.
void gemm(int64_t m, int64_t n, int64_t k, const MatrixRef& a, const MatrixRef& b, float* c,
          int64_t c_stride, float alpha = 1.0F, float beta = 0.0F);

// Rows of a block that one thread takes of an [m, n] output with contraction k: from shapes alone.
int64_t gemm_row_block(int64_t m, int64_t n, int64_t k);

}  // namespace graft::cpu
