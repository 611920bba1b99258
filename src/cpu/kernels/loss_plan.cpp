#include "cpu/kernels/loss_plan.h"

#include "cpu/isa.h"
#include "cpu/parallel.h"

namespace graft::cpu {
namespace {

constexpr int64_t kChunkRows = 256;
constexpr int64_t kGroups = 8;
constexpr int64_t kMostWaveChunks = 4;
constexpr int64_t kWaveElements = 8 << 20;  // of partial sums: 32 MB

}  // namespace

LossPlan::LossPlan(const Type& h_type, const Type& w_type, bool gradient, bool gradient_of_weight,
                   int threads)
    : rows(h_type.shape[0]),
      width(h_type.shape[1]),
      vocabulary(w_type.shape[0]),
      h(h_type.dtype),
      w(w_type.dtype),
      with_grad(gradient),
      weight_grad(gradient_of_weight),
      native(h == DType::kBF16 && w == DType::kBF16 && has_native_bf16()),
      w_expanded(w != DType::kF32 && !native) {
  chunk_rows = std::min(rows, kChunkRows);
  chunks = ceil_divide(rows, chunk_rows);
  group_size = round_up(ceil_divide(vocabulary, kGroups), kTile);
  groups = ceil_divide(vocabulary, group_size);
  tiles = ceil_divide(vocabulary, kTile);
  // The weights of a chunk are kept until its sums are known: one chunk at a time.
  const int64_t fitting = kWaveElements / std::max<int64_t>(chunk_rows * width * groups, 1);
  wave_chunks =
      weight_grad ? 1 : std::min(chunks, std::clamp<int64_t>(fitting, 1, kMostWaveChunks));

  ScratchLayout all, own;
  const int64_t units = wave_chunks * groups;
  if (!native) h_transposed = all.add(wave_chunks * width * chunk_rows);
  target_logit = all.add(wave_chunks * chunk_rows);
  maximum = all.add(units * chunk_rows);
  others = all.add(units * chunk_rows);
  if (with_grad) sums = all.add(units * chunk_rows * width);
  if (weight_grad) {
    weights = all.add(vocabulary * chunk_rows);
    tile_maximum = all.add(tiles * chunk_rows);
    factors = all.add(2 * chunk_rows);
  }
  if (!weight_grad) tile = own.add(kTile * chunk_rows);
  if (w_expanded) w_tile = own.add(kTile * width);
  rescale = own.add(chunk_rows);
  if (native && with_grad) narrow_tile = own.add(kTile * chunk_rows, 2);
  if (with_grad) dh = own.add(width);
  threads_begin = all.bytes();
  thread_bytes = own.bytes();
  bytes = threads_begin + thread_bytes * static_cast<size_t>(threads);
}

}  // namespace graft::cpu
