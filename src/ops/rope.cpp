#include "ops/rope.h"

#include <array>

#include "ops/common.h"

namespace graft {
namespace {

std::vector<Type> infer_rope(const Call& call) {
  const OperandCheck check(kRope, call);
  check.count(3);
  const Type& x = check.array(0, "x", 4);
  const Type& cos = check.array(1, "cos", 3);
  const int64_t half = cos.shape[2];
  check.that(2 * half <= x.shape[3], "cos has more frequencies than half of a head of x");
  const Shape shape{x.shape[0], x.shape[1], half};
  check.is(1, "cos", compute_dtype(x.dtype), shape);
  check.is(2, "sin", compute_dtype(x.dtype), shape);
  return {x};
}

// The two members of every pair: [B, S, H, R/2] each.
std::pair<Value, Value> split_pairs(Value x, int64_t half, bool interleaved) {
  if (!interleaved) return {slice(x, 3, 0, half), slice(x, 3, half, 2 * half)};
  const Shape shape{x.dim(0), x.dim(1), x.dim(2), half};
  Shape pairs = shape;
  pairs.push_back(2);
  const Value rotated = reshape(slice(x, 3, 0, 2 * half), pairs);
  return {reshape(slice(rotated, 4, 0, 1), shape), reshape(slice(rotated, 4, 1, 2), shape)};
}

Value join_pairs(Value first, Value second, bool interleaved) {
  if (!interleaved) return concatenate(std::array{first, second}, 3);
  Shape pairs = first.shape();
  pairs.push_back(1);
  const Value joined = concatenate(std::array{reshape(first, pairs), reshape(second, pairs)}, 4);
  return reshape(joined, {first.dim(0), first.dim(1), first.dim(2), 2 * first.dim(3)});
}

std::vector<Value> decompose_rope(Graph&, std::span<const Value> operands, const Call& call) {
  const Value x = operands[0];
  const DType dtype = compute_dtype(x.dtype());
  const int64_t half = operands[1].dim(2);
  const bool interleaved = call.attributes.flag("interleaved");
  const Shape shape{x.dim(0), x.dim(1), x.dim(2), half};
  const Value cos = broadcast_in_dim(operands[1], shape, {0, 1, 3});
  Value sin = broadcast_in_dim(operands[2], shape, {0, 1, 3});
  if (call.attributes.flag("inverse")) sin = -sin;
  const auto [first, second] = split_pairs(convert(x, dtype), half, interleaved);
  const Value y = convert(
      join_pairs(first * cos - second * sin, second * cos + first * sin, interleaved), x.dtype());
  if (2 * half == x.dim(3)) return {y};
  return {concatenate(std::array{y, slice(x, 3, 2 * half, x.dim(3))}, 3)};
}

// A rotation times the attention factor: its transpose is the rotation back times the same factor.
void rope_gradient(GradientContext& context) {
  refuse_gradient(context, 1, "cos");
  refuse_gradient(context, 2, "sin");
  Attributes attributes = context.attributes();
  attributes.set("inverse", !context.attributes().flag("inverse"));
  context.set(
      0, context.graph().add1(kRope, {context.cotangent(0), context.operand(1), context.operand(2)},
                              std::move(attributes)));
}

}  // namespace

const Op kRope{
    .name = "rope", .infer = infer_rope, .gradient = rope_gradient, .decompose = decompose_rope};

RopeTable rope_table(Value positions, Value inverse_frequencies, double attention_factor) {
  if (positions.rank() != 2 || positions.dtype() != DType::kS32 ||
      inverse_frequencies.rank() != 1 || !is_float(inverse_frequencies.dtype())) {
    throw Error(fmt::format("positions must be s32 [B, S] and inverse frequencies f32 [D/2], not "
                            "{} and {}",
                            to_string(positions.type()), to_string(inverse_frequencies.type())),
                "rope_table");
  }
  const Shape shape{positions.dim(0), positions.dim(1), inverse_frequencies.dim(0)};
  const Value position = convert(positions, inverse_frequencies.dtype());
  const Value angle =
      broadcast_in_dim(position, shape, {0, 1}) * broadcast_in_dim(inverse_frequencies, shape, {2});
  RopeTable table{cos(angle), sin(angle)};
  if (attention_factor != 1) {
    table.cos = table.cos * attention_factor;
    table.sin = table.sin * attention_factor;
  }
  return table;
}

Value rope(Value x, const RopeTable& table, bool interleaved) {
  return x.graph().add1(kRope, {x, table.cos, table.sin},
                        {{"interleaved", interleaved}, {"inverse", false}});
}

}  // namespace graft
