// The backward pass of attention in blocks (Dao et al. 2022): scores are computed again from q, k
// and the log of the denominator. With p = exp(score - lse) and delta = rowsum(d_out * out),
//   dv = p^T d_out,   ds = p * (d_out v^T - delta),   dq = scale * ds k,   dk = scale * ds^T q,
// ds being multiplied by 1 - (score / softcap)^2 where scores are capped.

#include <limits>

#include "ir/scan.h"
#include "ops/attention.h"
#include "ops/attention_blocks.h"

namespace graft {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One block of queries beside one block of keys.
struct BlockPair {
  Value q, d_out, lse, delta;  // [B, K, G, query rows, D or Dv or nothing]
  Value k, v;                  // [B, K, key rows, D or Dv]
};

struct BlockGradients {
  Value dq, dk, dv;
};

BlockGradients differentiate(const BlockPair& pair, const BlockMask& mask,
                             const AttentionLayout& layout, const Attributes& attributes) {
  Graph& graph = pair.q.graph();
  const DType dtype = pair.lse.dtype();
  const double softcap = attributes.f64("softcap");
  const Value capped = capped_scores(pair.q, pair.k, attributes);
  const Value hidden = splat(graph, -kInfinity, Type(capped.type()));
  const Value scores = select(visible(mask, layout), capped, hidden);
  // A row that sees no key has lse -inf; its scores are -inf too, and any finite lse gives p = 0.
  const Value nothing = splat(graph, -kInfinity, Type(pair.lse.type()));
  const Value lse = select(equal(pair.lse, nothing), zeros_like(pair.lse), pair.lse);
  const Value p = exp(scores - broadcast_last(lse, layout.key_rows));

  const DotDimensions over_width{
      .lhs_contract = {4}, .rhs_contract = {3}, .lhs_batch = {0, 1}, .rhs_batch = {0, 1}};
  const DotDimensions over_keys{
      .lhs_contract = {4}, .rhs_contract = {2}, .lhs_batch = {0, 1}, .rhs_batch = {0, 1}};
  const DotDimensions over_queries{
      .lhs_contract = {2, 3}, .rhs_contract = {2, 3}, .lhs_batch = {0, 1}, .rhs_batch = {0, 1}};
  const Value dp = product(pair.d_out, pair.v, over_width, dtype);
  Value ds = p * (dp - broadcast_last(pair.delta, layout.key_rows));
  if (softcap > 0) {
    const Value t = capped / softcap;
    ds = ds * (1 - t * t);
  }
  ds = ds * attributes.f64("scale");
  return {product(ds, pair.k, over_keys, dtype), product(ds, pair.q, over_queries, dtype),
          product(p, pair.d_out, over_queries, dtype)};
}

// d_sinks [H]: a sink has the weight exp(sink - lse) in every row's denominator, and no value.
Value sink_gradient(Value sinks, Value lse, Value delta) {
  const Value sink = broadcast_in_dim(sinks, Shape(lse.shape()), {1});
  return -reduce_sum(exp(sink - lse) * delta, {0, 2});
}

}  // namespace

// Blocks of keys outside, blocks of queries inside: dk and dv of a block are carried through the
// inner scan, and the blocks of dq go through it as operands and results.
std::vector<Value> attention_grad_in_blocks(Graph& graph, std::span<const Value> operands,
                                            const Attributes& attributes,
                                            AttentionBlockSizes sizes) {
  const Value d_out = operands[0], q = operands[1], k = operands[2], v = operands[3];
  const Value lse = operands[5];
  const DType narrow = q.dtype(), dtype = lse.dtype();
  const AttentionLayout layout(q.type(), k.type(), v.type(), sizes);
  // [B, S, H] -> [B, H, S]
  const Value delta =
      transpose(reduce_sum(convert(d_out, dtype) * convert(operands[4], dtype), {3}), {0, 2, 1});

  const Value q_blocks = layout.cut_queries(q);
  const Value dq_start = splat(graph, 0, {dtype, Shape(q_blocks.shape())});
  const ScanOperands outer{
      .carries = {dq_start},
      .invariants = {q_blocks, layout.cut_queries(d_out), layout.cut_statistic(lse),
                     layout.cut_statistic(delta), layout.cut_query_segments(operands[6]),
                     layout.query_starts(graph), operands[8], operands[9]},
      .stacked = {layout.cut_keys(k), layout.cut_keys(v), layout.cut_key_segments(operands[7]),
                  layout.key_starts(graph)}};
  const ScanResults results = scan(graph, layout.key_blocks, outer, [&](ScanBody& keys) {
    const Shape k_shape = keys.stacked(0).shape(), v_shape = keys.stacked(1).shape();
    const ScanOperands inner{
        .carries = {splat(keys.graph(), 0, {dtype, k_shape}),
                    splat(keys.graph(), 0, {dtype, v_shape})},
        .invariants = {keys.stacked(0), keys.stacked(1), keys.stacked(2), keys.stacked(3),
                       keys.invariant(6), keys.invariant(7)},
        .stacked = {keys.invariant(0), keys.invariant(1), keys.invariant(2), keys.invariant(3),
                    keys.invariant(4), keys.invariant(5), keys.carry(0)}};
    const ScanResults swept =
        scan(keys.graph(), layout.query_blocks, inner, [&](ScanBody& queries) {
          const BlockPair pair{.q = queries.stacked(0),
                               .d_out = queries.stacked(1),
                               .lse = queries.stacked(2),
                               .delta = queries.stacked(3),
                               .k = queries.invariant(0),
                               .v = queries.invariant(1)};
          const BlockMask mask{.query_segments = queries.stacked(4),
                               .query_start = queries.stacked(5),
                               .key_segments = queries.invariant(2),
                               .key_start = queries.invariant(3),
                               .window = queries.invariant(4),
                               .query_offset = queries.invariant(5)};
          const BlockGradients block = differentiate(pair, mask, layout, attributes);
          queries.carry_out(0, queries.carry(0) + block.dk);
          queries.carry_out(1, queries.carry(1) + block.dv);
          queries.stacked_out(queries.stacked(6) + block.dq);
        });
    keys.carry_out(0, swept.stacked[0]);
    keys.stacked_out(swept.carries[0]);
    keys.stacked_out(swept.carries[1]);
  });
  std::vector<Value> gradients{convert(layout.join_queries(results.carries[0]), narrow),
                               convert(layout.join_keys(results.stacked[0]), narrow),
                               convert(layout.join_keys(results.stacked[1]), narrow)};
  if (attributes.flag("has_sinks")) {
    gradients.push_back(sink_gradient(operands[10], lse, delta));
  }
  return gradients;
}

}  // namespace graft
