#include "ops/attention.h"

#include <array>
#include <limits>

#include "ir/scan.h"
#include "ops/attention_blocks.h"

namespace graft {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// q, k, v at `first`, and everything that follows them at `mask`; shared with kAttentionGrad.
void check_operands(const OperandCheck& check, const Call& call, int first, int mask) {
  const Type& q = check.array(first, "q", 4);
  const Type& k = check.array(first + 1, "k", 4);
  const Type& v = check.array(first + 2, "v", 4);
  check.that(k.dtype == q.dtype && v.dtype == q.dtype, "q, k and v must be of one element type");
  for (const int64_t extent : {q.shape[1], q.shape[2], k.shape[1], k.shape[2]}) {
    check.that(extent > 0, "q [B, S, H, D] and k [B, T, K, D] must not be empty");
  }
  const int64_t batch = q.shape[0], queries = q.shape[1], keys = k.shape[1];
  check.that(k.shape[0] == batch && k.shape[3] == q.shape[3],
             "k must be [B, T, K, D] with B and D of q [B, S, H, D]");
  check.that(v.shape[0] == batch && v.shape[1] == keys && v.shape[2] == k.shape[2],
             "v must be [B, T, K, Dv] with B, T and K of k");
  check.that(q.shape[2] % k.shape[2] == 0, "the heads of q must be a multiple of those of k");
  check.is(mask, "query_segments", DType::kS32, {batch, queries});
  check.is(mask + 1, "key_segments", DType::kS32, {batch, keys});
  check.is(mask + 2, "window", DType::kS32, {});
  check.is(mask + 3, "query_offset", DType::kS32, {});
  if (call.attributes.flag("has_sinks")) {
    check.is(mask + 4, "sinks", compute_dtype(q.dtype), {q.shape[2]});
  }
  check.that(call.attributes.f64("softcap") >= 0, "softcap must not be negative");
}

Shape output_shape(const Type& q, const Type& v) {
  return {q.shape[0], q.shape[1], q.shape[2], v.shape[3]};
}
Shape statistic_shape(const Type& q) { return {q.shape[0], q.shape[2], q.shape[1]}; }

std::vector<Type> infer_attention(const Call& call) {
  const OperandCheck check(kAttention, call);
  check.count(call.attributes.flag("has_sinks") ? 8 : 7);
  check_operands(check, call, 0, 3);
  const Type& q = call.operands[0];
  const DType dtype = compute_dtype(q.dtype);
  return {{q.dtype, output_shape(q, call.operands[2])}, {dtype, statistic_shape(q)}, {dtype, {}}};
}

std::vector<Type> infer_attention_grad(const Call& call) {
  const OperandCheck check(kAttentionGrad, call);
  const bool sinks = call.attributes.flag("has_sinks");
  check.count(sinks ? 11 : 10);
  check_operands(check, call, 1, 6);
  const Type &q = call.operands[1], &k = call.operands[2], &v = call.operands[3];
  const Shape out = output_shape(q, v);
  check.is(0, "d_out", q.dtype, out);
  check.is(4, "out", q.dtype, out);
  check.is(5, "lse", compute_dtype(q.dtype), statistic_shape(q));
  std::vector<Type> results{q, k, v};
  if (sinks) results.push_back({compute_dtype(q.dtype), {q.shape[2]}});
  return results;
}

// One block of queries against all blocks of keys: the running maximum, denominator and weighted
// sum of values (Milakov & Gimelshein 2018), rescaled whenever the maximum rises.
struct RowBlock {
  Value maximum, denominator, sum;  // [B, K, G, rows], the last with [..., Dv]
  Value greatest;                   // the largest score seen, []
};

RowBlock attend(Graph& graph, const AttentionLayout& layout, const Attributes& attributes,
                const RowBlock& start, const ScanOperands& blocks, DType dtype) {
  ScanOperands operands = blocks;
  operands.carries = {start.maximum, start.denominator, start.sum, start.greatest};
  const ScanResults results = scan(graph, layout.key_blocks, operands, [&](ScanBody& body) {
    const Value before = body.carry(0), k = body.stacked(0), v = body.stacked(1);
    const BlockMask mask{.query_segments = body.invariant(1),
                         .query_start = body.invariant(2),
                         .key_segments = body.stacked(2),
                         .key_start = body.stacked(3),
                         .window = body.invariant(3),
                         .query_offset = body.invariant(4)};
    const Value raw = capped_scores(body.invariant(0), k, attributes);
    const Value hidden = splat(body.graph(), -kInfinity, Type(raw.type()));
    const Value scores = select(visible(mask, layout), raw, hidden);
    const Value block_maximum = reduce_max(scores, {4});
    const Value next = maximum(before, block_maximum);
    // A row that has seen no key yet has the maximum -inf; 0 in its place keeps exp(-inf - x) at 0.
    const Value nothing = splat(body.graph(), -kInfinity, Type(next.type()));
    const Value safe = select(equal(next, nothing), zeros_like(next), next);
    const Value weights = exp(scores - broadcast_last(safe, layout.key_rows));
    const Value rescale = exp(before - safe);
    const DotDimensions over_keys{
        .lhs_contract = {4}, .rhs_contract = {2}, .lhs_batch = {0, 1}, .rhs_batch = {0, 1}};
    body.carry_out(0, next);
    body.carry_out(1, body.carry(1) * rescale + reduce_sum(weights, {4}));
    body.carry_out(2, body.carry(2) * broadcast_last(rescale, layout.value_width) +
                          product(weights, v, over_keys, dtype));
    body.carry_out(3, maximum(body.carry(3), reduce_max(block_maximum, {0, 1, 2, 3})));
  });
  return {results.carries[0], results.carries[1], results.carries[2], results.carries[3]};
}

}  // namespace

std::vector<Value> attention_in_blocks(Graph& graph, std::span<const Value> operands,
                                       const Attributes& attributes, AttentionBlockSizes sizes) {
  const Value q = operands[0], k = operands[1], v = operands[2];
  const DType narrow = q.dtype(), dtype = compute_dtype(narrow);
  const AttentionLayout layout(q.type(), k.type(), v.type(), sizes);
  const bool has_sinks = attributes.flag("has_sinks");

  ScanOperands blocks{
      .carries = {scalar(graph, -kInfinity, dtype)},
      .invariants = {layout.cut_keys(k), layout.cut_keys(v), layout.cut_key_segments(operands[4]),
                     layout.key_starts(graph), operands[5], operands[6]},
      .stacked = {layout.cut_queries(q), layout.cut_query_segments(operands[3]),
                  layout.query_starts(graph)}};
  if (has_sinks) {
    blocks.invariants.push_back(reshape(operands[7], {layout.key_heads, layout.groups}));
  }
  const ScanResults results = scan(graph, layout.query_blocks, blocks, [&](ScanBody& body) {
    const Shape rows{layout.batch, layout.key_heads, layout.groups, layout.query_rows};
    Shape wide = rows;
    wide.push_back(layout.value_width);
    // A sink is a key that has been seen already: it has a share of the denominator and no value.
    RowBlock start{splat(body.graph(), has_sinks ? 0 : -kInfinity, {dtype, rows}),
                   splat(body.graph(), has_sinks ? 1 : 0, {dtype, rows}),
                   splat(body.graph(), 0, {dtype, wide}), body.carry(0)};
    if (has_sinks) start.maximum = broadcast_in_dim(body.invariant(6), rows, {1, 2});
    const RowBlock block = attend(
        body.graph(), layout, attributes, start,
        {.invariants = {body.stacked(0), body.stacked(1), body.stacked(2), body.invariant(4),
                        body.invariant(5)},
         .stacked = {body.invariant(0), body.invariant(1), body.invariant(2), body.invariant(3)}},
        dtype);
    // Rows that saw no key: out 0, lse -inf. A NaN is not equal to 0 and stays.
    const Value zero = zeros_like(block.denominator);
    const Value empty = equal(block.denominator, zero);
    const Value denominator = select(empty, zero + 1, block.denominator);
    body.carry_out(0, block.greatest);
    body.stacked_out(convert(block.sum / broadcast_last(denominator, layout.value_width), narrow));
    body.stacked_out(select(empty, zero - kInfinity, block.maximum + log(denominator)));
  });
  return {layout.join_queries(results.stacked[0]), layout.join_statistic(results.stacked[1]),
          results.carries[0]};
}

namespace {

std::vector<Value> decompose_attention(Graph& graph, std::span<const Value> operands,
                                       const Call& call) {
  return attention_in_blocks(graph, operands, call.attributes, {});
}

std::vector<Value> decompose_attention_grad(Graph& graph, std::span<const Value> operands,
                                            const Call& call) {
  return attention_grad_in_blocks(graph, operands, call.attributes, {});
}

void attention_gradient(GradientContext& context) {
  refuse_cotangent(context, 1, "lse");
  if (!context.cotangent(0).defined()) return;  // max_logit is a statistic
  std::vector<Value> operands{context.cotangent(0), context.operand(0), context.operand(1),
                              context.operand(2),   context.result(0),  context.result(1)};
  for (size_t i = 3; i < context.operand_count(); ++i) operands.push_back(context.operand(i));
  const std::vector<Value> results =
      context.graph().add(kAttentionGrad, operands, context.attributes());
  for (size_t i = 0; i < 3; ++i) context.set(i, results[i]);
  if (results.size() > 3) context.set(7, results[3]);
}

}  // namespace

const Op kAttention{.name = "attention",
                    .infer = infer_attention,
                    .gradient = attention_gradient,
                    .decompose = decompose_attention,
                    .expensive = true};

const Op kAttentionGrad{.name = "attention_grad",
                        .infer = infer_attention_grad,
                        .decompose = decompose_attention_grad,
                        .expensive = true};

AttentionResult attention(Value q, Value k, Value v, const AttentionMask& mask,
                          const AttentionOptions& options, Value sinks) {
  std::vector<Value> operands{
      q, k, v, mask.query_segments, mask.key_segments, mask.window, mask.query_offset};
  Attributes attributes{{"scale", options.scale}, {"softcap", options.softcap}};
  if (sinks.defined()) {
    operands.push_back(sinks);
    attributes.set("has_sinks", true);
  }
  const std::vector<Value> results = q.graph().add(kAttention, operands, std::move(attributes));
  return {results[0], results[1], results[2]};
}

}  // namespace graft
