#include "ops/linear.h"

#include "ops/common.h"

namespace graft {
namespace {

// Where each operand of kLinear is; -1: absent.
struct LinearOperands {
  int bias = -1, a = -1, b = -1, scale = -1, lora_input = -1, count = 2;

  explicit LinearOperands(const Attributes& attributes) {
    if (attributes.flag("has_bias")) bias = count++;
    if (attributes.flag("has_lora")) {
      a = count++;
      b = count++;
      scale = count++;
    }
    if (attributes.flag("has_lora_input")) lora_input = count++;
  }
};

Shape with_last(Shape shape, int64_t extent) {
  shape.back() = extent;
  return shape;
}

// x [..., n] times the transpose of weight [m, n], or weight [n, m] itself.
Value times_transposed(Value x, Value weight, DType dtype) {
  return product(x, weight, {.lhs_contract = {x.rank() - 1}, .rhs_contract = {1}}, dtype);
}
Value times(Value x, Value weight, DType dtype) {
  return product(x, weight, {.lhs_contract = {x.rank() - 1}, .rhs_contract = {0}}, dtype);
}
// Sum over rows of the outer products: a [..., m], b [..., n] -> [m, n].
Value outer_sum(Value a, Value b, DType dtype) {
  const std::vector<int64_t> rows = first_axes(a.rank() - 1);
  return product(a, b, {.lhs_contract = rows, .rhs_contract = rows}, dtype);
}

// A [r, in], B [out, r] and scale [] at `first`; returns r.
int64_t check_lora(const OperandCheck& check, int first, const Type& weight, DType dtype) {
  const int64_t rank = check.array(first, "A", 2).shape[0];
  check.is(first, "A", dtype, {rank, weight.shape[1]});
  check.is(first + 1, "B", dtype, {weight.shape[0], rank});
  check.is(first + 2, "scale", dtype, {});
  return rank;
}

Type check_weight(const OperandCheck& check, const Call& call, const Type& x) {
  if (const auto layout = packed_layout(call.attributes)) {
    check.is(1, "W", DType::kU8, layout->stored_shape());
    return {compute_dtype(x.dtype), {layout->rows, layout->columns}};
  }
  const Type& weight = check.array(1, "W", 2);
  check.same_precision_class(x, weight);
  return weight;
}

std::vector<Type> infer_linear(const Call& call) {
  const OperandCheck check(kLinear, call);
  const LinearOperands at(call.attributes);
  check.that(at.lora_input < 0 || at.a >= 0, "has_lora_input needs has_lora");
  check.count(at.count);
  const Type& x = check.array_at_least(0, "x", 1);
  const Type weight = check_weight(check, call, x);
  check.that(x.shape.back() == weight.shape[1],
             "the last extent of x must be the second of W [out, in]");
  if (at.bias >= 0) {
    const Type& bias = check.array(at.bias, "bias", 1);
    check.is(at.bias, "bias", bias.dtype, {weight.shape[0]});
    check.same_precision_class(x, bias);
  }
  std::vector<Type> results{{x.dtype, with_last(x.shape, weight.shape[0])}};
  if (at.a >= 0) {
    const DType dtype = compute_dtype(x.dtype);
    const int64_t rank = check_lora(check, at.a, weight, dtype);
    if (at.lora_input >= 0) check.is(at.lora_input, "x_lora", x.dtype, x.shape);
    results.push_back({dtype, with_last(x.shape, rank)});
  }
  return results;
}

std::vector<Value> decompose_linear(Graph&, std::span<const Value> operands, const Call& call) {
  const LinearOperands at(call.attributes);
  const Value x = operands[0];
  const DType dtype = compute_dtype(x.dtype());
  Value y = times_transposed(x, expanded_weight(operands[1], call.attributes, dtype), dtype);
  if (at.bias >= 0) y = y + broadcast_to(convert(operands[at.bias], dtype), y.shape());
  if (at.a < 0) return {convert(y, x.dtype())};
  const Value input = at.lora_input < 0 ? x : operands[at.lora_input];
  const Value u = times_transposed(input, operands[at.a], dtype);
  y = y + operands[at.scale] * times_transposed(u, operands[at.b], dtype);
  return {convert(y, x.dtype()), u};
}

// The low-rank part of kLinear's gradient. `v`, scale * dy B, is given if the input's gradient made
// it; it has then done x_lora's too.
void lora_gradients(GradientContext& context, const LinearOperands& at, Value v) {
  const Value dy = context.cotangent(0), u = context.result(1);
  const Value a = context.operand(at.a), b = context.operand(at.b);
  const Value scale = context.operand(at.scale);
  const DType dtype = u.dtype();
  const bool branch_needed = !v.defined() && at.lora_input >= 0 && context.needs(at.lora_input);
  if (!v.defined() && (branch_needed || context.needs(at.a))) v = scale * times(dy, b, dtype);
  if (branch_needed) context.set(at.lora_input, convert(times(v, a, dtype), dy.dtype()));
  if (context.needs(at.a)) {
    const Value input = context.operand(at.lora_input < 0 ? 0 : at.lora_input);
    context.set(at.a, outer_sum(v, input, dtype));
  }
  if (context.needs(at.b)) context.set(at.b, scale * outer_sum(dy, u, dtype));
  if (context.needs(at.scale)) {
    context.set(at.scale, reduce_sum(u * times(dy, b, dtype), first_axes(u.rank())));
  }
}

void linear_gradient(GradientContext& context) {
  const LinearOperands at(context.attributes());
  const std::optional<PackedLayout> layout = packed_layout(context.attributes());
  if (layout) refuse_gradient(context, 1, "a packed weight");
  const bool lora = at.a >= 0;
  if (lora) refuse_cotangent(context, 1, "u = x A^T");
  const Value dy = context.cotangent(0);
  if (!dy.defined()) return;
  const Value weight = context.operand(1);
  const DType dtype = compute_dtype(dy.dtype());

  Value v;
  if (context.needs(0)) {
    const bool separate = at.lora_input >= 0;
    std::vector<Value> operands{dy, weight};
    Attributes attributes;
    if (layout) attributes.set(kPackedAttribute, layout->text());
    if (lora && (!separate || context.needs(at.lora_input))) {
      attributes.set("has_lora", true);
      if (separate) attributes.set("separate_lora", true);
      for (const int i : {at.a, at.b, at.scale}) operands.push_back(context.operand(i));
    }
    const std::vector<Value> results =
        context.graph().add(kLinearInputGrad, operands, std::move(attributes));
    context.set(0, results[0]);
    if (results.size() > 1) v = results[1];
    if (results.size() > 2) context.set(at.lora_input, results[2]);
  }
  if (context.needs(1)) context.set(1, outer_sum(dy, context.operand(0), dtype));
  if (at.bias >= 0 && context.needs(at.bias)) {
    context.set(at.bias, reduce_sum(convert(dy, dtype), first_axes(dy.rank() - 1)));
  }
  if (lora) lora_gradients(context, at, v);
}

std::vector<Type> infer_input_grad(const Call& call) {
  const OperandCheck check(kLinearInputGrad, call);
  const bool lora = call.attributes.flag("has_lora");
  const bool separate = call.attributes.flag("separate_lora");
  check.that(lora || !separate, "separate_lora needs has_lora");
  check.count(lora ? 5 : 2);
  const Type& dy = check.array_at_least(0, "dy", 1);
  const Type weight = check_weight(check, call, dy);
  check.that(dy.shape.back() == weight.shape[0],
             "the last extent of dy must be the first of W [out, in]");
  const Type dx{dy.dtype, with_last(dy.shape, weight.shape[1])};
  std::vector<Type> results{dx};
  if (lora) {
    const DType dtype = compute_dtype(dy.dtype);
    const int64_t rank = check_lora(check, 2, weight, dtype);
    results.push_back({dtype, with_last(dy.shape, rank)});
    if (separate) results.push_back(dx);
  }
  return results;
}

std::vector<Value> decompose_input_grad(Graph&, std::span<const Value> operands, const Call& call) {
  const Value dy = operands[0];
  const DType dtype = compute_dtype(dy.dtype());
  const Value dx = times(dy, expanded_weight(operands[1], call.attributes, dtype), dtype);
  if (!call.attributes.flag("has_lora")) return {convert(dx, dy.dtype())};
  const Value v = operands[4] * times(dy, operands[3], dtype);
  const Value dx_lora = times(v, operands[2], dtype);
  if (call.attributes.flag("separate_lora")) {
    return {convert(dx, dy.dtype()), v, convert(dx_lora, dy.dtype())};
  }
  return {convert(dx + dx_lora, dy.dtype()), v};
}

}  // namespace

const Op kLinear{.name = "linear",
                 .infer = infer_linear,
                 .gradient = linear_gradient,
                 .decompose = decompose_linear,
                 .expensive = true};

const Op kLinearInputGrad{.name = "linear_input_grad",
                          .infer = infer_input_grad,
                          .decompose = decompose_input_grad,
                          .expensive = true};

Value linear(Value x, const Weight& weight, Value bias, const LoraOperands* lora) {
  std::vector<Value> operands{x, weight.value};
  Attributes attributes;
  set_packed(attributes, weight);
  if (bias.defined()) {
    operands.push_back(bias);
    attributes.set("has_bias", true);
  }
  if (lora != nullptr) {
    operands.insert(operands.end(), {lora->a, lora->b, lora->scale});
    attributes.set("has_lora", true);
    if (lora->input.defined()) {
      operands.push_back(lora->input);
      attributes.set("has_lora_input", true);
    }
  }
  return x.graph().add(kLinear, operands, std::move(attributes))[0];
}

}  // namespace graft
