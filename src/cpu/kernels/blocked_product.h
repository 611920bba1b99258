#pragma once
// Activations times a weight, plus a low-rank term, in units of the output that fit the cache: what
// linear layers and their gradients are made of.
//
//   y [rows, columns] = round(y_scale * (x [rows, depth] w + low [rows, rank] q + bias))
//
// w is stored [depth, columns], or [columns, depth] if w_transposed; likewise q. x, w and the bias
// are f32 or bf16, or w is a packed matrix ([columns, depth] if w_transposed), which is expanded
// panel by panel; low and q f32; the sum is taken in f32 and rounded once to y's type.
//
//   const ProductPlan plan(shape, threads);          // from shapes and types alone
//   multiply(plan, operands, scratch, threads);      // scratch of plan.bytes()

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/packed.h"
#include "cpu/gemm.h"
#include "cpu/kernels/pack.h"

namespace graft::cpu {

struct ProductShape {
  int64_t rows = 0, columns = 0, depth = 0;
  int64_t rank = 0;  // 0: no low-rank term
  DType x = DType::kF32, w = DType::kF32, y = DType::kF32;
  bool w_transposed = false, q_transposed = false;
  std::optional<PackedLayout> packed = std::nullopt;  // of w; its type is then not looked at
};

struct ProductOperands {
  const void *x = nullptr, *w = nullptr;
  const float *low = nullptr, *q = nullptr;
  float q_scale = 1, y_scale = 1;
  const void* bias = nullptr;  // of type bias_dtype; null: none
  DType bias_dtype = DType::kF32;
  void* y = nullptr;
};

class ProductPlan {
 public:
  ProductPlan(const ProductShape& shape, int threads);
  size_t bytes() const { return thread_bytes_ * static_cast<size_t>(threads_); }

 private:
  friend class ProductRun;
  ProductShape shape_;
  int threads_;
  int64_t panel_ = 0, panels_ = 0;       // columns of a panel, and how many
  int64_t block_rows_ = 0, blocks_ = 0;  // rows of a block, and how many
  bool w_packed_ = false, x_expanded_ = false;
  size_t w_tile_ = 0, q_tile_ = 0, x_tile_ = 0, y_tile_ = 0;  // offsets in a thread's scratch
  size_t thread_bytes_ = 0;
};

void multiply(const ProductPlan& plan, const ProductOperands& operands, std::byte* scratch);

}  // namespace graft::cpu
