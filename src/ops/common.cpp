#include "ops/common.h"

#include <numeric>
#include <string>

namespace graft {

void OperandCheck::count(int operands) const {
  expect_operands(op_, call_, static_cast<size_t>(operands));
}

void OperandCheck::that(bool condition, std::string_view rule) const {
  if (!condition) refuse(op_, call_, rule);
}

void OperandCheck::is(int operand, std::string_view name, DType dtype, const Shape& shape) const {
  const Type wanted{dtype, shape};
  that(call_.operands[static_cast<size_t>(operand)] == wanted,
       fmt::format("{} must be {}", name, to_string(wanted)));
}

const Type& OperandCheck::array_at_least(int operand, std::string_view name, size_t rank) const {
  const Type& type = call_.operands[static_cast<size_t>(operand)];
  that(is_float(type.dtype) && type.shape.size() >= rank,
       fmt::format("{} must be of floats with at least {} axes", name, rank));
  return type;
}

const Type& OperandCheck::array(int operand, std::string_view name, size_t rank) const {
  const Type& type = call_.operands[static_cast<size_t>(operand)];
  that(is_float(type.dtype) && type.shape.size() == rank,
       fmt::format("{} must be of floats with {} axes", name, rank));
  return type;
}

void OperandCheck::same_precision_class(const Type& a, const Type& b) const {
  that((a.dtype == DType::kF64) == (b.dtype == DType::kF64), "f64 does not mix with other floats");
}

void refuse_cotangent(const GradientContext& context, size_t result, std::string_view name) {
  if (context.cotangent(result).defined()) {
    throw Error(fmt::format("there is no gradient through {}", name),
                std::string(context.node().op->name),
                "differentiate through its first result only");
  }
}

void refuse_gradient(const GradientContext& context, size_t operand, std::string_view name) {
  if (context.needs(operand)) {
    throw Error(fmt::format("there is no gradient with respect to {}", name),
                std::string(context.node().op->name));
  }
}

Value product(Value a, Value b, const DotDimensions& dimensions, DType dtype) {
  if (a.dtype() != b.dtype()) {
    a = convert(a, dtype);
    b = convert(b, dtype);
  }
  return dot_general(a, b, dimensions, dtype);
}

std::vector<int64_t> first_axes(int n) {
  std::vector<int64_t> axes(static_cast<size_t>(n));
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

Value broadcast_last(Value statistic, int64_t extent) {
  Shape shape = statistic.shape();
  shape.push_back(extent);
  return broadcast_in_dim(statistic, shape, first_axes(statistic.rank()));
}

Value pad_to_multiple(Value x, int axis, int64_t block, double value) {
  const int64_t extent = x.dim(axis);
  const int64_t missing = ceil_div(extent, block) * block - extent;
  return missing == 0 ? x : pad(x, axis, 0, missing, value);
}

}  // namespace graft
