#pragma once
// What the composites share: shape rules that name the operation and every operand's type, and the
// type in which they compute.
//
//   const OperandCheck check(kRmsNorm, call);
//   check.count(2);
//   const Type& x = check.array_at_least(0, "x", 1);
//   check.is(1, "w", x.dtype, {x.shape.back()});
//
// Where a header says f32 for what is computed (statistics, low-rank factors, gradients of
// weights), an operation on f64 has f64 there: finite differences of whole models then run in
// double precision.

#include <string_view>
#include <utility>
#include <vector>

#include "ir/autodiff.h"
#include "ir/graph.h"
#include "ir/primitives.h"
#include "ir/shape_rules.h"

namespace graft {

// f64 for f64, f32 for every other float.
inline DType compute_dtype(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// Wraps refuse() of ir/shape_rules.h for rules over named operands.
class OperandCheck {
 public:
  OperandCheck(const Op& op, const Call& call) : op_(op), call_(call) {}

  void count(int operands) const;
  // Raises Error "<operation>: <rule>, not <types of all operands>" unless the condition holds.
  void that(bool condition, std::string_view rule) const;
  // The operand is of exactly this type; `name` is what the header calls it.
  void is(int operand, std::string_view name, DType dtype, const Shape& shape) const;
  // A float of `rank` axes, or of at least `rank`.
  const Type& array(int operand, std::string_view name, size_t rank) const;
  const Type& array_at_least(int operand, std::string_view name, size_t rank) const;
  // f64 is for tests and stays among itself.
  void same_precision_class(const Type& a, const Type& b) const;

 private:
  const Op& op_;
  const Call& call_;
};

// Raises Error when something depends on a result that has no gradient of its own.
void refuse_cotangent(const GradientContext& context, size_t result, std::string_view name);
// Raises Error when the gradient of an operand is asked for that has none.
void refuse_gradient(const GradientContext& context, size_t operand, std::string_view name);

// dot_general of two floats, accumulated and returned in `dtype`; operands of different types are
// converted to it first.
Value product(Value a, Value b, const DotDimensions& dimensions, DType dtype);

// 0, 1, ... n - 1.
std::vector<int64_t> first_axes(int n);

// A statistic of the last axis beside what it was taken from: [...] -> [..., extent].
Value broadcast_last(Value statistic, int64_t extent);

// Pads an axis at its end to a multiple of `block`.
Value pad_to_multiple(Value x, int axis, int64_t block, double value = 0);

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace graft
