#include "cpu/kernels/attention_plan.h"

#include <algorithm>

#include "cpu/parallel.h"

namespace graft::cpu {
namespace {

// Rows of a tile: enough for products at full speed, few enough that little is computed above the
// diagonal.
int64_t tile_positions(int64_t groups) {
  constexpr int64_t kRows = 192, kStep = 16, kMost = 128;
  return std::clamp(kRows / groups / kStep * kStep, kStep, kMost);
}

}  // namespace

AttentionShape::AttentionShape(const Type& q, const Type& k, const Type& v)
    : batch(q.shape[0]),
      queries(q.shape[1]),
      keys(k.shape[1]),
      heads(q.shape[2]),
      key_heads(k.shape[2]),
      groups(heads / key_heads),
      width(q.shape[3]),
      value_width(v.shape[3]),
      dtype(q.dtype),
      positions(tile_positions(groups)),
      query_blocks(ceil_divide(queries, positions)) {}

int64_t AttentionShape::block_positions(int64_t block) const {
  return std::min(positions, queries - block * positions);
}

Rows AttentionShape::query_rows(const void* data, int64_t extent, int64_t batch_row,
                                int64_t position, int64_t head) const {
  const Rows all{data, dtype, heads * extent};
  return all.at(batch_row * queries + position, head * extent);
}

Rows AttentionShape::key_rows(const void* data, int64_t extent, int64_t batch_row, int64_t key,
                              int64_t key_head) const {
  const Rows all{data, dtype, key_heads * extent};
  return all.at(batch_row * keys + key, key_head * extent);
}

void AttentionShape::pack_tile(const void* data, int64_t extent, int64_t batch_row,
                               int64_t key_head, int64_t position, int64_t count, float* tile,
                               float scale) const {
  for (int64_t group = 0; group < groups; ++group) {
    const Rows rows = query_rows(data, extent, batch_row, position, key_head * groups + group);
    pack_rows(rows, count, extent, tile + group * count * extent, extent, scale);
  }
}

AttentionMaskOperands::AttentionMaskOperands(std::span<const Buffer> operands)
    : query_segments(operands[0].as<const int32_t>()),
      key_segments(operands[1].as<const int32_t>()),
      window(*operands[2].as<const int32_t>()),
      query_offset(*operands[3].as<const int32_t>()) {}

TileMask::TileMask(const AttentionShape& shape, const AttentionMaskOperands& operands,
                   int64_t batch_row, int64_t position, int64_t count)
    : query_segments_(operands.query_segments + batch_row * shape.queries + position),
      key_segments_(operands.key_segments + batch_row * shape.keys),
      count_(count),
      first_position_(position + operands.query_offset),
      window_(operands.window) {
  const auto [lowest, highest] = std::minmax_element(query_segments_, query_segments_ + count);
  lowest_segment_ = *lowest;
  highest_segment_ = *highest;
  visible_.begin = std::max<int64_t>(0, first_position_ - window_ + 1);
  visible_.end = std::min(shape.keys, first_position_ + count);
  skip_other_segments();
}

void TileMask::skip_other_segments() {
  const auto other = [&](int64_t key) {
    return key_segments_[key] < lowest_segment_ || key_segments_[key] > highest_segment_;
  };
  while (visible_.begin < visible_.end && other(visible_.begin)) ++visible_.begin;
  while (visible_.begin < visible_.end && other(visible_.end - 1)) --visible_.end;
}

ScoreMask TileMask::block(int64_t begin, int64_t count) const {
  ScoreMask mask;
  mask.positions = static_cast<size_t>(count_);
  mask.keys = static_cast<size_t>(count);
  mask.first_position = first_position_ - begin;
  mask.window = window_;
  const int64_t last_position = first_position_ + count_ - 1;
  mask.ranged = begin + count - 1 > first_position_ || begin <= last_position - window_;
  const bool one_segment = lowest_segment_ == highest_segment_ &&
                           std::all_of(key_segments_ + begin, key_segments_ + begin + count,
                                       [&](int32_t segment) { return segment == lowest_segment_; });
  if (!one_segment) {
    mask.query_segments = query_segments_;
    mask.key_segments = key_segments_ + begin;
  }
  return mask;
}

MatrixRef key_matrix(const Rows& rows, int64_t count, int64_t extent, float* tile,
                     bool transposed) {
  if (rows.is_f32()) return {rows.data, DType::kF32, rows.stride, transposed};
  pack_rows(rows, count, extent, tile, extent);
  return {tile, DType::kF32, extent, transposed};
}

}  // namespace graft::cpu
