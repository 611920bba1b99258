#include "ops/attention_blocks.h"

#include <algorithm>

namespace graft {
namespace {

// [B, n * rows] -> [n, B, rows], padded.
Value cut_rows(Value x, int64_t rows) {
  const Value padded = pad_to_multiple(x, 1, rows);
  return transpose(reshape(padded, {x.dim(0), padded.dim(1) / rows, rows}), {1, 0, 2});
}

Value starts(Graph& graph, int64_t blocks, int64_t rows) {
  const Value index = iota(graph, {DType::kS32, {blocks}}, 0);
  return index * static_cast<double>(rows);
}

}  // namespace

AttentionLayout::AttentionLayout(const Type& q, const Type& k, const Type& v,
                                 AttentionBlockSizes sizes)
    : batch(q.shape[0]),
      queries(q.shape[1]),
      keys(k.shape[1]),
      heads(q.shape[2]),
      key_heads(k.shape[2]),
      groups(heads / key_heads),
      width(q.shape[3]),
      value_width(v.shape[3]),
      query_rows(std::min(queries, sizes.query)),
      query_blocks(ceil_div(queries, query_rows)),
      key_rows(std::min(keys, sizes.key)),
      key_blocks(ceil_div(keys, key_rows)) {}

Value AttentionLayout::cut_queries(Value x) const {
  const Value padded = pad_to_multiple(x, 1, query_rows);
  const Value cut = reshape(padded, {batch, query_blocks, query_rows, key_heads, groups, x.dim(3)});
  return transpose(cut, {1, 0, 3, 4, 2, 5});
}

Value AttentionLayout::join_queries(Value x) const {
  const Value rows = transpose(x, {1, 0, 4, 2, 3, 5});
  return slice(reshape(rows, {batch, query_blocks * query_rows, heads, x.dim(5)}), 1, 0, queries);
}

Value AttentionLayout::cut_statistic(Value x) const {
  const Value padded = pad_to_multiple(x, 2, query_rows);
  const Value cut = reshape(padded, {batch, key_heads, groups, query_blocks, query_rows});
  return transpose(cut, {3, 0, 1, 2, 4});
}

Value AttentionLayout::join_statistic(Value x) const {
  const Value rows = transpose(x, {1, 2, 3, 0, 4});
  return slice(reshape(rows, {batch, heads, query_blocks * query_rows}), 2, 0, queries);
}

Value AttentionLayout::cut_keys(Value x) const {
  const Value padded = pad_to_multiple(x, 1, key_rows);
  const Value cut = reshape(padded, {batch, key_blocks, key_rows, key_heads, x.dim(3)});
  return transpose(cut, {1, 0, 3, 2, 4});
}

Value AttentionLayout::join_keys(Value x) const {
  const Value rows = transpose(x, {1, 0, 3, 2, 4});
  return slice(reshape(rows, {batch, key_blocks * key_rows, key_heads, x.dim(4)}), 1, 0, keys);
}

Value AttentionLayout::cut_query_segments(Value x) const { return cut_rows(x, query_rows); }
Value AttentionLayout::cut_key_segments(Value x) const { return cut_rows(x, key_rows); }
Value AttentionLayout::query_starts(Graph& graph) const {
  return starts(graph, query_blocks, query_rows);
}
Value AttentionLayout::key_starts(Graph& graph) const {
  return starts(graph, key_blocks, key_rows);
}

Value visible(const BlockMask& mask, const AttentionLayout& layout) {
  Graph& graph = mask.query_segments.graph();
  const Type block{DType::kS32, {layout.query_rows, layout.key_rows}};
  const Value row = iota(graph, block, 0) + mask.query_start;
  const Value key = iota(graph, block, 1) + mask.key_start;
  const Value query = row + mask.query_offset;
  const auto below = [&](Value index, int64_t limit) {
    return less(index, splat(graph, static_cast<double>(limit), block));
  };
  const Value in_order = less_equal(key, query) & less(query - key, mask.window);
  const Value in_range = below(key, layout.keys) & below(row, layout.queries);

  const Shape batched{layout.batch, layout.query_rows, layout.key_rows};
  const Value same_segment = equal(broadcast_in_dim(mask.query_segments, batched, {0, 1}),
                                   broadcast_in_dim(mask.key_segments, batched, {0, 2}));
  const Value seen = same_segment & broadcast_in_dim(in_order & in_range, batched, {1, 2});
  return broadcast_in_dim(
      seen, {layout.batch, layout.key_heads, layout.groups, layout.query_rows, layout.key_rows},
      {0, 3, 4});
}

Value capped_scores(Value q, Value k, const Attributes& attributes) {
  const double softcap = attributes.f64("softcap");
  const DotDimensions dimensions{
      .lhs_contract = {4}, .rhs_contract = {3}, .lhs_batch = {0, 1}, .rhs_batch = {0, 1}};
  const Value scores =
      product(q, k, dimensions, compute_dtype(q.dtype())) * attributes.f64("scale");
  return softcap > 0 ? softcap * tanh(scores / softcap) : scores;
}

}  // namespace graft
