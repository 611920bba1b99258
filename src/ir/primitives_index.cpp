// Primitives that address elements by index: gather, scatter_add, top_k.
//
// The cotangent of a low-precision value may come in f32; it is moved and added as it is.

#include <limits>

#include "ir/autodiff.h"
#include "ir/primitives.h"
#include "ir/shape_rules.h"

namespace graft {
namespace {

std::vector<Type> infer_gather(const Call& call) {
  expect_operands(kGather, call, 2);
  const Type &table = call.operands[0], &indices = call.operands[1];
  if (table.shape.empty()) refuse(kGather, call, "operand 0 must have rows");
  if (indices.dtype != DType::kS32) refuse(kGather, call, "operand 1 must be s32 indices");
  if (table.shape[0] == 0 && indices.elements() > 0) {
    refuse(kGather, call, "operand 0 must have at least one row");
  }
  Shape shape = indices.shape;
  shape.insert(shape.end(), table.shape.begin() + 1, table.shape.end());
  return {{table.dtype, std::move(shape)}};
}

void gather_gradient(GradientContext& c) {
  if (!c.needs(0)) return;
  const Value table = c.operand(0);
  Value indices = c.operand(1);
  const int64_t count = indices.type().elements();
  Shape rows(table.shape().begin() + 1, table.shape().end());
  rows.insert(rows.begin(), count);
  // The row that was read is the clamped one; scatter_add drops what is out of range.
  const auto last = static_cast<double>(table.dim(0) - 1);
  const Value zero = zeros_like(indices);
  indices = reshape(minimum(maximum(indices, zero), zero + last), {count});
  const Value g = c.cotangent(0);
  const Value zeros = splat(c.graph(), 0, {g.dtype(), table.shape()});
  c.set(0, scatter_add(zeros, indices, reshape(g, rows)));
}

std::vector<Type> infer_scatter_add(const Call& call) {
  expect_operands(kScatterAdd, call, 3);
  const Type &table = call.operands[0], &indices = call.operands[1], &updates = call.operands[2];
  expect_kind(kScatterAdd, call, 0, kFloats | kIntegers);
  if (table.shape.empty()) refuse(kScatterAdd, call, "operand 0 must have rows");
  if (indices.dtype != DType::kS32 || indices.shape.size() != 1) {
    refuse(kScatterAdd, call, "operand 1 must be a list of s32 indices");
  }
  Type expected = table;
  expected.shape[0] = indices.shape[0];
  if (updates != expected) {
    refuse(kScatterAdd, call, "operand 2 must hold a row of operand 0 for each index");
  }
  return {table};
}

void scatter_add_gradient(GradientContext& c) {
  const Value table = c.operand(0), indices = c.operand(1), g = c.cotangent(0);
  c.set(0, g);
  if (!c.needs(2)) return;
  const Value zero = zeros_like(indices);
  const Value kept =
      greater_equal(indices, zero) & less(indices, zero + static_cast<double>(table.dim(0)));
  const Value rows = gather(g, indices);
  c.set(2, select(broadcast_in_dim(kept, Shape(rows.shape()), {0}), rows, zeros_like(rows)));
}

std::vector<Type> infer_top_k(const Call& call) {
  expect_operands(kTopK, call, 1);
  expect_kind(kTopK, call, 0, kFloats | kIntegers);
  const Type& x = call.operands[0];
  const int64_t k = call.attributes.i64("k");
  if (x.shape.empty() || k < 0 || k > x.shape.back()) {
    refuse(kTopK, call, fmt::format("k = {} must lie within the last axis", k));
  }
  if (x.shape.back() > std::numeric_limits<int32_t>::max()) {
    refuse(kTopK, call, "the last axis must be within the range of s32");
  }
  Shape shape = x.shape;
  shape.back() = k;
  return {{x.dtype, shape}, {DType::kS32, shape}};
}

// The cotangents go to where the values came from: rows side by side as one list of elements.
void top_k_gradient(GradientContext& c) {
  const Value x = c.operand(0), g = c.cotangent(0);
  if (!g.defined()) return;
  const int64_t width = x.dim(-1), k = c.attributes().i64("k");
  const int64_t elements = x.type().elements();
  if (elements > std::numeric_limits<int32_t>::max()) {
    throw Error(
        fmt::format("top_k: the gradient of {} needs indices beyond s32", to_string(x.type())));
  }
  const int64_t rows = width == 0 ? 0 : elements / width;
  Graph& graph = c.graph();
  const Value first = iota(graph, {DType::kS32, {rows, k}}, 0) * static_cast<double>(width);
  const Value places = reshape(reshape(c.result(1), {rows, k}) + first, {rows * k});
  const Value zeros = splat(graph, 0, {g.dtype(), {elements}});
  c.set(0, reshape(scatter_add(zeros, places, reshape(g, {rows * k})), Shape(x.shape())));
}

}  // namespace

const Op kGather{
    .name = "gather", .primitive = true, .infer = infer_gather, .gradient = gather_gradient};
const Op kScatterAdd{.name = "scatter_add",
                     .primitive = true,
                     .infer = infer_scatter_add,
                     .gradient = scatter_add_gradient};
const Op kTopK{
    .name = "top_k", .primitive = true, .infer = infer_top_k, .gradient = top_k_gradient};

Value gather(Value table, Value indices) { return table.graph().add1(kGather, {table, indices}); }

Value scatter_add(Value table, Value indices, Value updates) {
  return table.graph().add1(kScatterAdd, {table, indices, updates});
}

std::vector<Value> top_k(Value x, int64_t k) {
  const Value operands[] = {x};
  return x.graph().add(kTopK, operands, {{"k", k}});
}

}  // namespace graft
