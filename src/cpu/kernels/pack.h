#pragma once
// Moves blocks of matrices between memory and the f32 tiles that products work on: transposing,
// expanding bf16, scaling, adding a bias, rounding back. Vectorised; one thread, no allocation.
//
//   pack_transposed({w, DType::kBF16, in}, columns, in, panel, columns);  // panel[i][j] = w[j][i]

#include <cstdint>

#include "base/dtype.h"

namespace graft::cpu {

// Rows of an f32 or bf16 matrix in memory, `stride` elements apart.
struct Rows {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t stride = 0;

  // The same matrix from (row, column) on.
  Rows at(int64_t row, int64_t column = 0) const {
    const auto offset = dtype_bytes(dtype, static_cast<size_t>(row * stride + column));
    return {static_cast<const std::byte*>(data) + offset, dtype, stride};
  }
  bool is_f32() const { return dtype == DType::kF32; }
};

// tile[j * tile_stride + i] = from[i][j] for i < rows, j < columns.
void pack_transposed(const Rows& from, int64_t rows, int64_t columns, float* tile,
                     int64_t tile_stride);

// tile[i * tile_stride + j] = scale * from[i][j].
void pack_rows(const Rows& from, int64_t rows, int64_t columns, float* tile, int64_t tile_stride,
               float scale = 1.0F);

// to[i * to_stride + j] = scale * tile[i][j], rounded to `dtype`. May be in place (f32).
void store_rows(const float* tile, int64_t tile_stride, int64_t rows, int64_t columns, void* to,
                DType dtype, int64_t to_stride, float scale = 1.0F);

// tile[i][j] += bias[j]; the bias f32 or bf16.
void add_bias(const Rows& bias, float* tile, int64_t tile_stride, int64_t rows, int64_t columns);

// Over n elements: values[i] *= factor; values[i] += other[i]; values[i] += factor * other[i].
void scale_values(float factor, float* values, int64_t n);
void add_values(const float* other, float* values, int64_t n);
void add_scaled(float factor, const Rows& other, float* values, int64_t n);

}  // namespace graft::cpu
