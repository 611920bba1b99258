#include "ops/loss.h"

#include <algorithm>

#include "ir/scan.h"
#include "ops/common.h"

namespace graft {
namespace {

// Rows whose logits exist at one time: enough for a GEMM to run well, little beside the
// activations.
constexpr int64_t kChunkRows = 128;

std::vector<Type> infer(const Op& op, const Call& call) {
  const OperandCheck check(op, call);
  check.count(4);
  const Type& h = check.array(0, "h", 2);
  const auto layout = packed_layout(call.attributes);
  if (layout) {
    check.is(1, "W", DType::kU8, layout->stored_shape());
  } else {
    check.same_precision_class(h, check.array(1, "W", 2));
  }
  const Type weight = weight_type(call.operands[1], call.attributes);
  check.that(h.shape[0] > 0 && weight.shape[0] > 0, "h [N, d] and W [V, d] must have rows");
  check.that(h.shape[1] == weight.shape[1], "h [N, d] and W [V, d] must agree in d");
  const DType dtype = compute_dtype(h.dtype);
  const Shape rows{h.shape[0]};
  check.is(2, "targets", DType::kS32, rows);
  check.is(3, "weights", dtype, rows);
  check.that(call.attributes.f64("softcap") >= 0, "softcap must not be negative");
  return {{dtype, {}}, {dtype, rows}};
}

std::vector<Type> infer_cross_entropy(const Call& call) { return infer(kCrossEntropy, call); }

std::vector<Type> infer_with_grad(const Call& call) {
  std::vector<Type> results = infer(kCrossEntropyWithGrad, call);
  const Type& h = call.operands[0];
  results.push_back(h);
  if (call.attributes.flag("weight_grad")) {
    results.push_back({compute_dtype(h.dtype), call.operands[1].shape});
  }
  return results;
}

// A chunk of rows: its negative log likelihoods, and what their gradient needs.
struct Chunk {
  Value nll;        // [rows]; 0 where ignored
  Value scores;     // capped logits [rows, V]
  Value log_sum;    // [rows]
  Value at_target;  // bool [rows, V]; false in ignored rows
  Value valid;      // bool [rows]
};

Chunk evaluate(Value h, Value weight, Value targets, double softcap, DType dtype) {
  Graph& graph = h.graph();
  Chunk chunk;
  chunk.scores = product(h, weight, {.lhs_contract = {1}, .rhs_contract = {1}}, dtype);
  if (softcap > 0) chunk.scores = softcap * tanh(chunk.scores / softcap);
  const int64_t vocabulary = weight.dim(0);
  const Value greatest = reduce_max(chunk.scores, {1});
  const Value shifted = chunk.scores - broadcast_last(greatest, vocabulary);
  chunk.log_sum = greatest + log(reduce_sum(exp(shifted), {1}));
  const Type columns{DType::kS32, chunk.scores.shape()};
  chunk.at_target = equal(iota(graph, columns, 1), broadcast_last(targets, vocabulary));
  chunk.valid = greater_equal(targets, zeros_like(targets));
  const Value zero = zeros_like(chunk.scores);
  const Value score = reduce_sum(select(chunk.at_target, chunk.scores, zero), {1});
  chunk.nll = select(chunk.valid, chunk.log_sum - score, zeros_like(chunk.log_sum));
  return chunk;
}

// d sum(row_weights * nll) / d logits, [rows, V], before the soft cap.
Value logit_gradient(const Chunk& chunk, Value row_weights, double softcap) {
  const int64_t vocabulary = chunk.scores.dim(1);
  const Value probability = exp(chunk.scores - broadcast_last(chunk.log_sum, vocabulary));
  const Value factor = select(chunk.valid, row_weights, zeros_like(row_weights));
  Value gradient = (probability - convert(chunk.at_target, probability.dtype())) *
                   broadcast_last(factor, vocabulary);
  if (softcap > 0) {
    const Value t = chunk.scores / softcap;
    gradient = gradient * (1 - t * t);
  }
  return gradient;
}

// [N, ...] -> [chunks, rows, ...], padded.
Value in_chunks(Value x, int64_t rows, double padding) {
  const Value padded = pad_to_multiple(x, 0, rows, padding);
  Shape shape = x.shape();
  shape[0] = rows;
  shape.insert(shape.begin(), padded.dim(0) / rows);
  return reshape(padded, shape);
}

// The inverse: [chunks, rows, ...] -> [N, ...].
Value from_chunks(Value x, int64_t count) {
  Shape shape(x.shape().begin() + 1, x.shape().end());
  shape[0] *= x.dim(0);
  return slice(reshape(x, shape), 0, 0, count);
}

std::vector<Value> evaluate_in_chunks(Graph& graph, std::span<const Value> operands,
                                      const Attributes& attributes, bool with_grad) {
  const double softcap = attributes.f64("softcap");
  const bool weight_grad = with_grad && attributes.flag("weight_grad");
  const Value h = operands[0];
  const int64_t count = h.dim(0), rows = std::min(count, kChunkRows);
  const DType dtype = compute_dtype(h.dtype());
  const Shape weight_shape = weight_type(operands[1].type(), attributes).shape;
  ScanOperands chunks{.invariants = {operands[1]},
                      .stacked = {in_chunks(h, rows, 0), in_chunks(operands[2], rows, -1),
                                  in_chunks(operands[3], rows, 0)}};
  if (weight_grad) chunks.carries.push_back(splat(graph, 0, {dtype, weight_shape}));
  const ScanResults results = scan(graph, ceil_div(count, rows), chunks, [&](ScanBody& body) {
    const Value rows_h = body.stacked(0),
                head = expanded_weight(body.invariant(0), attributes, dtype);
    const Chunk chunk = evaluate(rows_h, head, body.stacked(1), softcap, dtype);
    body.stacked_out(chunk.nll);
    if (!with_grad) return;
    const Value gradient = logit_gradient(chunk, body.stacked(2), softcap);
    const Value dh = product(gradient, head, {.lhs_contract = {1}, .rhs_contract = {0}}, dtype);
    body.stacked_out(convert(dh, rows_h.dtype()));
    if (weight_grad) {
      body.carry_out(0, body.carry(0) + product(gradient, rows_h,
                                                {.lhs_contract = {0}, .rhs_contract = {0}}, dtype));
    }
  });

  const Value nll = from_chunks(results.stacked[0], count);
  // An ignored row adds nothing, whatever its weight.
  const Value valid = greater_equal(operands[2], zeros_like(operands[2]));
  const Value loss = reduce_sum(select(valid, operands[3] * nll, zeros_like(nll)), {0});
  std::vector<Value> values{loss, nll};
  if (with_grad) values.push_back(from_chunks(results.stacked[1], count));
  if (weight_grad) values.push_back(results.carries[0]);
  return values;
}

std::vector<Value> decompose_cross_entropy(Graph& graph, std::span<const Value> operands,
                                           const Call& call) {
  return evaluate_in_chunks(graph, operands, call.attributes, false);
}

std::vector<Value> decompose_with_grad(Graph& graph, std::span<const Value> operands,
                                       const Call& call) {
  return evaluate_in_chunks(graph, operands, call.attributes, true);
}

bool is_one(Value value) {
  const Graph& graph = value.graph();
  const int index = graph.defining_node(value.id());
  if (index < 0) return false;
  const Node& node = graph.nodes()[static_cast<size_t>(index)];
  if (node.op == &kSplat) return node.attributes.f64("value") == 1;
  if (node.op != &kConstant || value.rank() != 0) return false;
  return node.attributes.tensor("value").as(DType::kF64).data<double>()[0] == 1;
}

// `gradient`, made for a unit cotangent, times the cotangent; of its own type.
Value scaled(Value cotangent, Value gradient) {
  if (is_one(cotangent)) return gradient;
  return convert(cotangent * convert(gradient, cotangent.dtype()), gradient.dtype());
}

void cross_entropy_gradient(GradientContext& context) {
  refuse_cotangent(context, 1, "nll");
  const Value cotangent = context.cotangent(0);
  if (!cotangent.defined()) return;
  if (packed_layout(context.attributes())) refuse_gradient(context, 1, "a packed head");
  if (context.needs(0) || context.needs(1)) {
    Attributes attributes = context.attributes();
    if (context.needs(1)) attributes.set("weight_grad", true);
    std::vector<Value> operands;
    for (size_t i = 0; i < 4; ++i) operands.push_back(context.operand(i));
    const std::vector<Value> results =
        context.graph().add(kCrossEntropyWithGrad, operands, std::move(attributes));
    context.set(0, scaled(cotangent, results[2]));
    if (context.needs(1)) context.set(1, scaled(cotangent, results[3]));
  }
  if (context.needs(3)) context.set(3, scaled(cotangent, context.result(1)));
}

}  // namespace

const Op kCrossEntropy{.name = "cross_entropy",
                       .infer = infer_cross_entropy,
                       .gradient = cross_entropy_gradient,
                       .decompose = decompose_cross_entropy,
                       .expensive = true,
                       .subsumed_by = &kCrossEntropyWithGrad};

const Op kCrossEntropyWithGrad{.name = "cross_entropy_with_grad",
                               .infer = infer_with_grad,
                               .decompose = decompose_with_grad,
                               .expensive = true};

CrossEntropyResult cross_entropy(Value h, const Weight& head, Value targets, Value weights,
                                 double softcap) {
  Attributes attributes{{"softcap", softcap}};
  set_packed(attributes, head);
  const std::vector<Value> results = h.graph().add(
      kCrossEntropy, std::vector<Value>{h, head.value, targets, weights}, std::move(attributes));
  return {results[0], results[1]};
}

}  // namespace graft
