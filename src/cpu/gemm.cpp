#include "cpu/gemm.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>

#include "base/error.h"
#include "cpu/gemm_bf16.h"
#include "cpu/isa.h"
#include "cpu/kernels/pack.h"

namespace graft::cpu {
namespace {

// oneDNN reads the size of the team when it is called, and would start one of its own.
class OneThread {
 public:
  OneThread() : threads_(omp_get_max_threads()) {
    if (threads_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (threads_ != 1) omp_set_num_threads(threads_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_;
};

void gemm_f32(int64_t m, int64_t n, int64_t k, const MatrixRef& a, const MatrixRef& b, float* c,
              int64_t c_stride, float alpha, float beta) {
  const dnnl_status_t status =
      dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, alpha,
                 static_cast<const float*>(a.data), a.stride, static_cast<const float*>(b.data),
                 b.stride, beta, c, c_stride);
  GRAFT_CHECK(status == dnnl_success, "dnnl_sgemm {} x {} x {}: status {}", m, n, k,
              static_cast<int>(status));
}

// The part of a matrix from element (i, j) on, of rows x columns, as f32: itself, or expanded into
// `tile`.
MatrixRef expanded(const MatrixRef& matrix, int64_t i, int64_t j, int64_t rows, int64_t columns,
                   float* tile) {
  Rows part{matrix.data, matrix.dtype, matrix.stride};
  part = matrix.transposed ? part.at(j, i) : part.at(i, j);
  if (part.is_f32()) return {part.data, DType::kF32, part.stride, matrix.transposed};
  if (matrix.transposed) std::swap(rows, columns);
  pack_rows(part, rows, columns, tile, columns);
  return {tile, DType::kF32, columns, matrix.transposed};
}

// Operands that oneDNN does not take as they are: expanded to f32 block by block. The blocks of
// both lie on the stack, in cache.
void gemm_expanded(int64_t m, int64_t n, int64_t k, const MatrixRef& a, const MatrixRef& b,
                   float* c, int64_t c_stride, float alpha, float beta) {
  constexpr int64_t kRows = 64, kColumns = 128, kDepth = 256;
  alignas(64) float a_tile[kRows * kDepth];
  alignas(64) float b_tile[kDepth * kColumns];
  for (int64_t j = 0; j < n; j += kColumns) {
    const int64_t columns = std::min(kColumns, n - j);
    for (int64_t l = 0; l < k; l += kDepth) {
      const int64_t depth = std::min(kDepth, k - l);
      const MatrixRef right = expanded(b, l, j, depth, columns, b_tile);
      for (int64_t i = 0; i < m; i += kRows) {
        const int64_t rows = std::min(kRows, m - i);
        const MatrixRef left = expanded(a, i, l, rows, depth, a_tile);
        gemm_f32(rows, columns, depth, left, right, c + i * c_stride + j, c_stride, alpha,
                 l == 0 ? beta : 1.0F);
      }
    }
  }
}

}  // namespace

void gemm(int64_t m, int64_t n, int64_t k, const MatrixRef& a, const MatrixRef& b, float* c,
          int64_t c_stride, float alpha, float beta) {
  if (m <= 0 || n <= 0) return;
  if (k <= 0) {
    for (int64_t i = 0; i < m; ++i) {
      float* row = c + i * c_stride;
      for (int64_t j = 0; j < n; ++j) row[j] = beta == 0.0F ? 0.0F : beta * row[j];
    }
    return;
  }
  const OneThread one_thread;
  if (a.dtype == DType::kF32 && b.dtype == DType::kF32) {
    gemm_f32(m, n, k, a, b, c, c_stride, alpha, beta);
  } else if (a.dtype != b.dtype || !has_native_bf16() ||
             !gemm_bf16(m, n, k, a, b, c, c_stride, alpha, beta)) {
    gemm_expanded(m, n, k, a, b, c, c_stride, alpha, beta);
  }
}

int64_t gemm_row_block(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kBlocks = 8;                // enough to share out
  constexpr int64_t kFewest = 32, kMost = 128;  // rows; to amortise reading b
  constexpr int64_t kStep = 16;
  constexpr int64_t kProducts = 1 << 19;  // some ten microseconds: a call's own cost is then small
  const int64_t share = ((m + kBlocks - 1) / kBlocks + kStep - 1) / kStep * kStep;
  const int64_t row = std::max<int64_t>(n * k, 1);
  const int64_t worthwhile = ((kProducts + row - 1) / row + kStep - 1) / kStep * kStep;
  const int64_t rows = std::max(std::clamp(share, kFewest, kMost), worthwhile);
  return std::clamp<int64_t>(rows, 1, std::max<int64_t>(m, 1));
}

}  // namespace graft::cpu
