#include "ops/norm.h"

#include "ops/common.h"

namespace graft {
namespace {

Shape without_last(Shape shape) {
  shape.pop_back();
  return shape;
}

bool unweighted(const Call& call) { return call.attributes.flag("unweighted"); }

// w [d] at `operand`, against x [..., d].
void check_weight(const OperandCheck& check, int operand, const Type& x) {
  const Type& weight = check.array(operand, "w", 1);
  check.is(operand, "w", weight.dtype, {x.shape.back()});
  check.same_precision_class(x, weight);
}

// w + offset in f32, [d].
Value factor(Value weight, const Attributes& attributes, DType dtype) {
  const double offset = attributes.f64("offset");
  const Value w = convert(weight, dtype);
  return offset == 0 ? w : w + offset;
}

std::vector<Type> infer_rms_norm(const Call& call) {
  const OperandCheck check(kRmsNorm, call);
  check.count(unweighted(call) ? 1 : 2);
  const Type& x = check.array_at_least(0, "x", 1);
  if (!unweighted(call)) check_weight(check, 1, x);
  return {x, {compute_dtype(x.dtype), without_last(x.shape)}};
}

std::vector<Value> decompose_rms_norm(Graph&, std::span<const Value> operands, const Call& call) {
  const Value x = operands[0];
  const DType dtype = compute_dtype(x.dtype());
  const int64_t extent = x.dim(-1);
  const Value wide = convert(x, dtype);
  const Value mean = reduce_sum(wide * wide, {x.rank() - 1}) / static_cast<double>(extent);
  const Value rstd = rsqrt(mean + call.attributes.f64("eps"));
  Value y = wide * broadcast_last(rstd, extent);
  if (!unweighted(call)) {
    if (call.attributes.flag("round_before_weight")) y = convert(convert(y, x.dtype()), dtype);
    y = y * broadcast_to(factor(operands[1], call.attributes, dtype), y.shape());
  }
  return {convert(y, x.dtype()), rstd};
}

void rms_norm_gradient(GradientContext& context) {
  refuse_cotangent(context, 1, "rstd");
  if (!context.cotangent(0).defined()) return;
  const bool weighted = context.operand_count() == 2;
  std::vector<Value> operands{context.cotangent(0), context.operand(0)};
  if (weighted) operands.push_back(context.operand(1));
  operands.push_back(context.result(1));
  Attributes attributes = context.attributes();
  if (weighted && context.needs(1)) attributes.set("weight_grad", true);
  const std::vector<Value> results =
      context.graph().add(kRmsNormGrad, operands, std::move(attributes));
  context.set(0, results[0]);
  if (results.size() > 1) context.set(1, results[1]);
}

std::vector<Type> infer_rms_norm_grad(const Call& call) {
  const OperandCheck check(kRmsNormGrad, call);
  const bool weighted = !unweighted(call);
  const bool weight_grad = call.attributes.flag("weight_grad");
  check.that(weighted || !weight_grad, "weight_grad needs a weight");
  check.count(weighted ? 4 : 3);
  const Type& x = check.array_at_least(1, "x", 1);
  const DType dtype = compute_dtype(x.dtype);
  check.is(0, "dy", x.dtype, x.shape);
  if (weighted) check_weight(check, 2, x);
  check.is(weighted ? 3 : 2, "rstd", dtype, without_last(x.shape));
  std::vector<Type> results{x};
  if (weight_grad) results.push_back({dtype, {x.shape.back()}});
  return results;
}

// With n = x * rstd and g = dy * (w + offset): dx = rstd * (g - n * mean(g * n)), dw = sum(dy * n).
// The rounding of round_before_weight is passed over, as rounding is everywhere.
std::vector<Value> decompose_rms_norm_grad(Graph&, std::span<const Value> operands,
                                           const Call& call) {
  const Value x = operands[1];
  const DType dtype = compute_dtype(x.dtype());
  const int64_t extent = x.dim(-1);
  const Value dy = convert(operands[0], dtype);
  const Value rstd = broadcast_last(operands.back(), extent);
  const Value normalised = convert(x, dtype) * rstd;
  Value g = dy;
  if (!unweighted(call)) {
    g = g * broadcast_to(factor(operands[2], call.attributes, dtype), x.shape());
  }
  const Value mean = reduce_sum(g * normalised, {x.rank() - 1}) / static_cast<double>(extent);
  const Value dx = rstd * (g - normalised * broadcast_last(mean, extent));
  std::vector<Value> results{convert(dx, x.dtype())};
  if (call.attributes.flag("weight_grad")) {
    results.push_back(reduce_sum(dy * normalised, first_axes(x.rank() - 1)));
  }
  return results;
}

}  // namespace

const Op kRmsNorm{.name = "rms_norm",
                  .infer = infer_rms_norm,
                  .gradient = rms_norm_gradient,
                  .decompose = decompose_rms_norm};

const Op kRmsNormGrad{
    .name = "rms_norm_grad", .infer = infer_rms_norm_grad, .decompose = decompose_rms_norm_grad};

Value rms_norm(Value x, Value weight, const RmsNormOptions& options) {
  std::vector<Value> operands{x};
  Attributes attributes{{"eps", options.eps},
                        {"offset", options.offset},
                        {"round_before_weight", options.round_before_weight}};
  if (weight.defined()) {
    operands.push_back(weight);
  } else {
    attributes.set("unweighted", true);
  }
  return x.graph().add(kRmsNorm, operands, std::move(attributes))[0];
}

}  // namespace graft
