#pragma once
// Tiles of packed matrices (base/packed.h) to f32, beside the products that use them: to the bit
// what expand_packed (formats/packed_blocks.h) gives, vectorised per instruction set. One thread,
// no allocation for the formats that are met most (those of 4 to 8 bits).
//
//   unpack_rows({layout, data}, 0, 16, 0, layout.columns, strip, layout.columns);

#include <cstddef>
#include <cstdint>

#include "base/packed.h"

namespace graft::cpu {

struct PackedMatrix {
  PackedLayout layout;
  const void* data = nullptr;
};

// tile[i * tile_stride + j] = W[row + i][column + j] for i < rows, j < columns.
void unpack_rows(const PackedMatrix& matrix, int64_t row, int64_t rows, int64_t column,
                 int64_t columns, float* tile, int64_t tile_stride);

// tile[j * tile_stride + i] = W[row + i][j] for i < rows and every column j, by way of `strip`,
// which has room for kStripElements.
inline constexpr int64_t kStripElements = 16 * 256;
void unpack_transposed(const PackedMatrix& matrix, int64_t row, int64_t rows, float* strip,
                       float* tile, int64_t tile_stride);

}  // namespace graft::cpu
