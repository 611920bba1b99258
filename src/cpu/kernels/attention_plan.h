#pragma once
// How both directions of attention are cut up, and which keys a block of queries sees.
//
// A tile is a block of neighbouring query positions of all the heads that share a key head: rows
// (head, position), so that one product with a block of keys serves the whole group (Ainslie et al.
// 2023). Tiles go over the keys they see in blocks of kKeyRows; what no query of the tile sees is
// never touched.

#include <cstdint>
#include <span>

#include "cpu/gemm.h"
#include "cpu/kernel.h"
#include "cpu/kernels/attention_vector.h"
#include "cpu/kernels/pack.h"
#include "ir/graph.h"

namespace graft::cpu {

constexpr int64_t kKeyRows = 128;

struct AttentionShape {
  int64_t batch, queries, keys, heads, key_heads, groups, width, value_width;
  DType dtype;
  int64_t positions;     // of a tile
  int64_t query_blocks;  // tiles in a sequence, for one key head

  // Of q [B, S, H, D], k [B, T, K, D] and v [B, T, K, Dv].
  AttentionShape(const Type& q, const Type& k, const Type& v);

  int64_t tile_rows() const { return groups * std::min(positions, queries); }
  int64_t block_positions(int64_t block) const;

  // Rows of one head of q-like [B, S, H, E] or k-like [B, T, K, E] arrays.
  Rows query_rows(const void* data, int64_t extent, int64_t batch_row, int64_t position,
                  int64_t head) const;
  Rows key_rows(const void* data, int64_t extent, int64_t batch_row, int64_t key,
                int64_t key_head) const;
  // Gathers a tile of a q-like array into [groups * count, extent] f32.
  void pack_tile(const void* data, int64_t extent, int64_t batch_row, int64_t key_head,
                 int64_t position, int64_t count, float* tile, float scale = 1) const;
};

// The operands that say what is seen (ops/attention.h).
struct AttentionMaskOperands {
  const int32_t *query_segments, *key_segments;  // [B, S], [B, T]
  int64_t window, query_offset;

  explicit AttentionMaskOperands(std::span<const Buffer> operands);  // from query_segments on
};

struct KeyRange {
  int64_t begin = 0, end = 0;
};

// The mask of one tile.
class TileMask {
 public:
  TileMask(const AttentionShape& shape, const AttentionMaskOperands& operands, int64_t batch_row,
           int64_t position, int64_t count);

  // No key outside is seen by any query of the tile.
  KeyRange visible() const { return visible_; }
  // For keys [begin, begin + count).
  ScoreMask block(int64_t begin, int64_t count) const;

 private:
  void skip_other_segments();

  const int32_t *query_segments_, *key_segments_;
  int64_t count_, first_position_, window_;
  int32_t lowest_segment_, highest_segment_;
  KeyRange visible_;
};

// Keys or values as a matrix for gemm: as they lie, or expanded into the tile.
MatrixRef key_matrix(const Rows& rows, int64_t count, int64_t extent, float* tile, bool transposed);

}  // namespace graft::cpu
