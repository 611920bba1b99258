#pragma once
// The primitives: the whole vocabulary of a decomposed graph. docs/ir.md lists each beside its
// StableHLO operation. Shapes are static; there is no implicit broadcasting except of scalars by
// the operators below, which insert broadcast_in_dim.
//
// Floats compute in their own type, with dot_general, reductions and everything transcendental of
// low-precision floats accumulated in f32 and rounded once.

#include <cstdint>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace graft {

// clang-format off
// Constants
extern const Op kConstant;         // attribute value: Tensor (a literal of any size)
extern const Op kSplat;            // attributes value: f64, dtype, shape: every element alike
extern const Op kIota;             // attributes dtype, shape, axis
// Elementwise, one operand
extern const Op kNeg, kExp, kLog, kLog1p, kSqrt, kRsqrt, kTanh, kLogistic, kCos, kSin, kAbs, kFloor, kSign;
extern const Op kNot;              // bool, or bitwise on integers
extern const Op kIsFinite;         // float -> bool
extern const Op kConvert;          // attribute dtype
// Elementwise, two operands of one type
extern const Op kAdd, kSub, kMul, kDiv, kMax, kMin, kPow;
extern const Op kAnd, kOr, kXor;   // bool, or bitwise on integers
extern const Op kShiftLeft, kShiftRight;  // integers; right is logical
extern const Op kCompare;          // attribute direction: "EQ" "NE" "LT" "LE" "GT" "GE" -> bool
// Elementwise, three operands
extern const Op kSelect;           // (bool, a, b) of one shape
// Shape
extern const Op kBroadcastInDim;   // attributes shape, dims: operand axis i becomes result axis dims[i]
extern const Op kReshape;          // attribute shape
extern const Op kTranspose;        // attribute permutation
extern const Op kSlice;            // attributes start, limit, stride
extern const Op kPad;              // (x, scalar); attributes low, high: nonnegative
extern const Op kConcatenate;      // attribute axis
extern const Op kDynamicSlice;     // (x, s32 scalar start of each axis...); attribute sizes; starts clamped
extern const Op kDynamicUpdateSlice;  // (x, update, s32 scalar start of each axis...)
// Reduction
extern const Op kReduceSum, kReduceMax;  // attribute axes: dropped from the shape
// Contraction: result axes are batch, then free axes of the left, then of the right
extern const Op kDotGeneral;       // attributes lhs_batch, rhs_batch, lhs_contract, rhs_contract, dtype of the result
// Rows of the first axis
extern const Op kGather;           // (table [R, ...], s32 indices [...]) -> [indices..., ...]; indices clamped
extern const Op kScatterAdd;       // (table [R, ...], s32 indices [N], updates [N, ...]); out of range: dropped; in index order
// Order
extern const Op kTopK;             // x [..., n]; attribute k -> values [..., k], s32 indices; ties: the lower index first
// Control: kScan, see ir/scan.h
extern const Op kCase;             // (s32 scalar, operands...); bodies of equal types; index clamped
// clang-format on

// Every one of them, scan included, in the order of the table in docs/ir.md.
std::span<const Op* const> primitives();

// Constants
Value literal(Graph& graph, Tensor value);
Value splat(Graph& graph, double value, Type type);
Value scalar(Graph& graph, double value, DType dtype = DType::kF32);
Value zeros_like(Value x);
Value iota(Graph& graph, Type type, int axis);

// Elementwise. Where one operand is a scalar (rank 0) it is broadcast to the other's shape.
Value operator+(Value a, Value b);
Value operator-(Value a, Value b);
Value operator*(Value a, Value b);
Value operator/(Value a, Value b);
Value operator-(Value a);
Value operator+(Value a, double b);
Value operator-(Value a, double b);
Value operator*(Value a, double b);
Value operator/(Value a, double b);
Value operator+(double a, Value b);
Value operator-(double a, Value b);
Value operator*(double a, Value b);
Value operator/(double a, Value b);
Value maximum(Value a, Value b);
Value minimum(Value a, Value b);
Value power(Value a, Value b);
Value exp(Value x);
Value log(Value x);
Value log1p(Value x);
Value sqrt(Value x);
Value rsqrt(Value x);
Value tanh(Value x);
Value logistic(Value x);
Value cos(Value x);
Value sin(Value x);
Value abs(Value x);
Value floor(Value x);
Value sign(Value x);
Value is_finite(Value x);
Value convert(Value x, DType dtype);  // x itself if it is of that type
Value logical_not(Value x);
Value operator&(Value a, Value b);
Value operator|(Value a, Value b);
Value operator^(Value a, Value b);
Value shift_left(Value x, int bits);
Value shift_right(Value x, int bits);
Value equal(Value a, Value b);
Value not_equal(Value a, Value b);
Value less(Value a, Value b);
Value less_equal(Value a, Value b);
Value greater(Value a, Value b);
Value greater_equal(Value a, Value b);
Value select(Value condition, Value if_true, Value if_false);

// Shape
Value broadcast_in_dim(Value x, const Shape& shape, const std::vector<int64_t>& dims);
Value broadcast_to(
    Value x, const Shape& shape);  // NumPy's rule: trailing axes align, 1s and scalars stretch
Value reshape(Value x, const Shape& shape);  // one extent may be -1
Value transpose(Value x, const std::vector<int64_t>& permutation);
Value slice(Value x, int axis, int64_t start, int64_t limit);
Value pad(Value x, int axis, int64_t low, int64_t high, double value = 0);
Value concatenate(std::span<const Value> parts, int axis);
Value dynamic_slice(Value x, std::span<const Value> starts, const Shape& sizes);
Value dynamic_update_slice(Value x, Value update, std::span<const Value> starts);
Value reduce_sum(Value x, const std::vector<int64_t>& axes);
Value reduce_max(Value x, const std::vector<int64_t>& axes);

struct DotDimensions {
  std::vector<int64_t> lhs_contract, rhs_contract, lhs_batch = {}, rhs_batch = {};
};
// The result is of `dtype`, by default the operands' own; accumulated in f32 (f64 for f64).
Value dot_general(Value a, Value b, const DotDimensions& dimensions);
Value dot_general(Value a, Value b, const DotDimensions& dimensions, DType dtype);

Value gather(Value table, Value indices);
Value scatter_add(Value table, Value indices, Value updates);
std::vector<Value> top_k(Value x, int64_t k);

// The results of bodies[index] on the operands; an index out of range is clamped.
std::vector<Value> case_of(Value index, std::span<const Value> operands,
                           std::vector<std::shared_ptr<const Graph>> bodies);

}  // namespace graft
