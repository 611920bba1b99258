#include "ops/optimizer.h"

#include "ops/common.h"

namespace graft {
namespace {

enum AdamWOperand { kP, kM, kV, kGradient, kClip, kLearningRate, kC1, kC2, kFinite, kCount };

std::vector<Type> infer_adamw(const Call& call) {
  const OperandCheck check(kAdamW, call);
  check.count(kCount);
  const Type& p = check.array_at_least(kP, "p", 0);
  check.that(p.dtype == compute_dtype(p.dtype), "the state of the optimiser must be f32");
  check.is(kM, "m", p.dtype, p.shape);
  check.is(kV, "v", p.dtype, p.shape);
  check.is(kGradient, "gradient", p.dtype, p.shape);
  check.is(kClip, "clip", p.dtype, {});
  check.is(kLearningRate, "learning_rate", p.dtype, {});
  check.is(kC1, "c1", p.dtype, {});
  check.is(kC2, "c2", p.dtype, {});
  check.is(kFinite, "finite", DType::kBool, {});
  return {p, p, p};
}

std::vector<Value> decompose_adamw(Graph&, std::span<const Value> operands, const Call& call) {
  const double beta1 = call.attributes.f64("beta1"), beta2 = call.attributes.f64("beta2");
  const double weight_decay = call.attributes.f64("weight_decay");
  const Value p = operands[kP], rate = operands[kLearningRate];
  const Value g = operands[kGradient] * operands[kClip];
  const Value m = operands[kM] * beta1 + g * (1 - beta1);
  const Value v = operands[kV] * beta2 + g * g * (1 - beta2);
  Value next = p;
  if (weight_decay != 0) next = next - rate * weight_decay * p;
  next = next -
         rate * (m / operands[kC1]) / (sqrt(v / operands[kC2]) + call.attributes.f64("epsilon"));
  const Value finite = broadcast_to(operands[kFinite], p.shape());
  return {select(finite, next, p), select(finite, m, operands[kM]),
          select(finite, v, operands[kV])};
}

std::vector<Type> infer_sum_squares(const Call& call) {
  const OperandCheck check(kSumSquares, call);
  check.count(1);
  return {{compute_dtype(check.array_at_least(0, "x", 0).dtype), {}}};
}

// The last axis first, then the rest: sums of sums keep an f32 total of many millions of terms
// exact enough, where one running sum would not.
std::vector<Value> decompose_sum_squares(Graph&, std::span<const Value> operands, const Call&) {
  const Value x = convert(operands[0], compute_dtype(operands[0].dtype()));
  Value sum = x * x;
  while (sum.rank() > 0) sum = reduce_sum(sum, {sum.rank() - 1});
  return {sum};
}

}  // namespace

const Op kAdamW{.name = "adamw", .infer = infer_adamw, .decompose = decompose_adamw};

const Op kSumSquares{
    .name = "sum_squares", .infer = infer_sum_squares, .decompose = decompose_sum_squares};

AdamWResult adamw(const AdamWOperands& operands, const AdamWOptions& options) {
  const std::vector<Value> results = operands.parameter.graph().add(
      kAdamW,
      std::vector<Value>{operands.parameter, operands.m, operands.v, operands.gradient,
                         operands.clip, operands.learning_rate, operands.c1, operands.c2,
                         operands.finite},
      {{"beta1", options.beta1},
       {"beta2", options.beta2},
       {"epsilon", options.epsilon},
       {"weight_decay", options.weight_decay}});
  return {results[0], results[1], results[2]};
}

Value sum_squares(Value x) { return x.graph().add1(kSumSquares, {x}); }

}  // namespace graft
