#include "ops/activation.h"

#include <cmath>
#include <numbers>
#include <string>

#include "ir/scan.h"
#include "ops/common.h"

namespace graft {
namespace {

// erf from the primitives: 2/sqrt(pi) exp(-x^2) sum_n 2^n x^(2n+1) / (2n+1)!!, a series without
// cancellation (Abramowitz & Stegun 7.1.6), evaluated from its far end. Beyond `limit` erf is 1.
Value erf(Value x) {
  Graph& graph = x.graph();
  const DType dtype = x.dtype();
  const bool wide = dtype == DType::kF64;
  const double limit = wide ? 6 : 4;
  const int64_t terms = wide ? 160 : 64;
  std::vector<double> odd;
  for (int64_t n = terms; n > 0; --n) odd.push_back(static_cast<double>(2 * n + 1));
  x = minimum(maximum(x, scalar(graph, -limit, dtype)), scalar(graph, limit, dtype));
  const Value square = x * x;
  const Value one = splat(graph, 1, x.type());
  const Value series =
      scan(graph, terms,
           {.carries = {one},
            .invariants = {square * 2},
            .stacked = {literal(graph, Tensor::of({terms}, odd).as(dtype))}},
           [](ScanBody& body) {
             body.carry_out(0, body.carry(0) * body.invariant(0) / body.stacked(0) + 1);
           })
          .carries[0];
  return x * exp(-square) * series * (2 * std::numbers::inv_sqrtpi);
}

// act(x) and act'(x), in x's own type.
struct Activation {
  Value value, derivative;
};

Activation silu(Value x) {
  const Value gate = logistic(x);
  return {x * gate, gate * (1 + x * (1 - gate))};
}

Activation gelu_tanh(Value x) {
  const double scale = std::sqrt(2 / std::numbers::pi), cubic = 0.044715;
  const Value square = x * x;
  const Value t = tanh(scale * x * (1 + cubic * square));
  return {0.5 * x * (1 + t),
          0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * cubic * square)};
}

Activation gelu(Value x) {
  const Value cumulative = 0.5 * (1 + erf(x * std::numbers::sqrt2 * 0.5));
  const Value density = exp(-0.5 * x * x) * (std::numbers::inv_sqrtpi * std::numbers::sqrt2 * 0.5);
  return {x * cumulative, cumulative + x * density};
}

Activation activate(Value x, const std::string& name) {
  if (name == "silu") return silu(x);
  if (name == "gelu_tanh") return gelu_tanh(x);
  return gelu(x);
}

void check_name(const OperandCheck& check, const Call& call) {
  const std::string& name = call.attributes.text("activation");
  check.that(name == "silu" || name == "gelu_tanh" || name == "gelu",
             fmt::format("there is no activation \"{}\": silu, gelu_tanh or gelu", name));
}

std::vector<Type> infer_gated(const Call& call) {
  const OperandCheck check(kGatedActivation, call);
  check.count(2);
  const Type& gate = check.array_at_least(0, "gate", 0);
  check.is(1, "up", gate.dtype, gate.shape);
  check_name(check, call);
  return {gate};
}

std::vector<Value> decompose_gated(Graph&, std::span<const Value> operands, const Call& call) {
  const DType dtype = compute_dtype(operands[0].dtype());
  const Value gate = convert(operands[0], dtype), up = convert(operands[1], dtype);
  const Activation act = activate(gate, call.attributes.text("activation"));
  return {convert(act.value * up, operands[0].dtype())};
}

void gated_gradient(GradientContext& context) {
  const std::vector<Value> results = context.graph().add(
      kGatedActivationGrad,
      std::vector<Value>{context.cotangent(0), context.operand(0), context.operand(1)},
      context.attributes());
  context.set(0, results[0]);
  context.set(1, results[1]);
}

std::vector<Type> infer_gated_grad(const Call& call) {
  const OperandCheck check(kGatedActivationGrad, call);
  check.count(3);
  const Type& dy = check.array_at_least(0, "dy", 0);
  check.is(1, "gate", dy.dtype, dy.shape);
  check.is(2, "up", dy.dtype, dy.shape);
  check_name(check, call);
  return {dy, dy};
}

std::vector<Value> decompose_gated_grad(Graph&, std::span<const Value> operands, const Call& call) {
  const DType narrow = operands[0].dtype(), dtype = compute_dtype(narrow);
  const Value dy = convert(operands[0], dtype);
  const Value gate = convert(operands[1], dtype), up = convert(operands[2], dtype);
  const Activation act = activate(gate, call.attributes.text("activation"));
  return {convert(dy * up * act.derivative, narrow), convert(dy * act.value, narrow)};
}

}  // namespace

const Op kGatedActivation{.name = "gated_activation",
                          .infer = infer_gated,
                          .gradient = gated_gradient,
                          .decompose = decompose_gated};

const Op kGatedActivationGrad{
    .name = "gated_activation_grad", .infer = infer_gated_grad, .decompose = decompose_gated_grad};

Value gated_activation(Value gate, Value up, std::string_view activation) {
  return gate.graph().add1(kGatedActivation, {gate, up}, {{"activation", std::string(activation)}});
}

}  // namespace graft
