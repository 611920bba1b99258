#pragma once
// How cross entropy is cut up, and where everything is in its scratch: from shapes and types alone.
//
// Rows of h go in chunks, the vocabulary in groups; a unit of work is a chunk against a group,
// which it goes through in tiles [kTile, rows] of transposed logits. Chunks go in waves, as many at
// a time as the partial results of their units fit kWaveElements.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "ir/graph.h"

namespace graft::cpu {

struct LossPlan {
  static constexpr int64_t kTile = 256;  // entries of the vocabulary

  int64_t rows, width, vocabulary;
  DType h, w;
  bool with_grad, weight_grad;
  bool native;      // bf16 products by the machine's own instructions
  bool w_expanded;  // a bf16 or packed W, tile by tile to f32

  int64_t chunk_rows, chunks, wave_chunks;
  int64_t group_size, groups, tiles;  // vocabulary entries of a group; groups; tiles in all

  // Offsets. Of the wave: by chunk, by (chunk, group), and (weight_grad) by tile.
  size_t h_transposed = 0, target_logit = 0;  // [wave_chunks][width, chunk_rows], [.][chunk_rows]
  size_t maximum = 0, others = 0, sums = 0;   // [wave_chunks][groups][chunk_rows (, width)]
  size_t weights = 0, tile_maximum = 0,
         factors = 0;  // [vocabulary, chunk_rows], [tiles][chunk_rows] twice
  size_t threads_begin = 0, thread_bytes = 0, bytes = 0;
  // Of a thread.
  size_t tile = 0, w_tile = 0, rescale = 0, narrow_tile = 0, dh = 0;

  // `w_type` of a packed W: u8 [V, d].
  LossPlan(const Type& h_type, const Type& w_type, bool gradient, bool gradient_of_weight,
           int threads);

  int64_t group_end(int64_t group) const { return std::min(vocabulary, (group + 1) * group_size); }
};

}  // namespace graft::cpu
