// Reductions and dot_general: shape rules, gradients and builders.
//
// Where several elements attain a maximum, the gradient of reduce_max is shared equally among them.

#include <algorithm>

#include "ir/autodiff.h"
#include "ir/primitives.h"
#include "ir/shape_rules.h"

namespace graft {
namespace {

template <const Op& op>
std::vector<Type> infer_reduce(const Call& call) {
  expect_operands(op, call, 1);
  expect_kind(op, call, 0, kFloats | kIntegers);
  const Type& x = call.operands[0];
  const std::vector<int64_t>& axes = call.attributes.integers("axes");
  const auto rank = static_cast<int64_t>(x.shape.size());
  expect_axes(op, call, axes, rank, true);
  Shape shape;
  for (int64_t axis : other_axes(rank, axes)) shape.push_back(x.shape[static_cast<size_t>(axis)]);
  return {{x.dtype, std::move(shape)}};
}

// Gives a reduced value the shape that it had, its elements repeated along the reduced axes.
Value spread(Value reduced, const Shape& shape, const std::vector<int64_t>& axes) {
  return broadcast_in_dim(reduced, shape, other_axes(static_cast<int64_t>(shape.size()), axes));
}

void reduce_sum_gradient(GradientContext& c) {
  const std::vector<int64_t> axes = c.attributes().integers("axes");
  c.set(0, spread(c.cotangent(0), Shape(c.operand(0).shape()), axes));
}

void reduce_max_gradient(GradientContext& c) {
  const std::vector<int64_t> axes = c.attributes().integers("axes");
  const Value x = c.operand(0);
  const Shape shape = x.shape();
  const Value attained = convert(equal(x, spread(c.result(0), shape, axes)), x.dtype());
  const Value share = convert(c.cotangent(0), x.dtype()) / reduce_sum(attained, axes);
  c.set(0, attained * spread(share, shape, axes));
}

Value reduce(const Op& op, Value x, std::vector<int64_t> axes) {
  for (int64_t& axis : axes) axis += axis < 0 ? x.rank() : 0;
  std::sort(axes.begin(), axes.end());
  if (axes.empty()) return x;
  return x.graph().add1(op, {x}, {{"axes", std::move(axes)}});
}

// The roles of one operand's axes.
struct Side {
  std::vector<int64_t> batch, contract, free;
};

Side lhs_side(const Attributes& attributes, const Type& type) {
  Side side{attributes.integers("lhs_batch"), attributes.integers("lhs_contract"), {}};
  std::vector<int64_t> taken = side.batch;
  taken.insert(taken.end(), side.contract.begin(), side.contract.end());
  side.free = other_axes(static_cast<int64_t>(type.shape.size()), taken);
  return side;
}

Side rhs_side(const Attributes& attributes, const Type& type) {
  Side side{attributes.integers("rhs_batch"), attributes.integers("rhs_contract"), {}};
  std::vector<int64_t> taken = side.batch;
  taken.insert(taken.end(), side.contract.begin(), side.contract.end());
  side.free = other_axes(static_cast<int64_t>(type.shape.size()), taken);
  return side;
}

void expect_side(const Call& call, size_t operand, const char* batch, const char* contract) {
  std::vector<int64_t> axes = call.attributes.integers(batch);
  const std::vector<int64_t>& contracted = call.attributes.integers(contract);
  axes.insert(axes.end(), contracted.begin(), contracted.end());
  expect_axes(kDotGeneral, call, axes, static_cast<int64_t>(call.operands[operand].shape.size()),
              false);
}

void expect_paired(const Call& call, const char* role, const std::vector<int64_t>& lhs,
                   const std::vector<int64_t>& rhs) {
  if (lhs.size() != rhs.size()) {
    refuse(kDotGeneral, call,
           fmt::format("{} axes {} and {} must pair up", role, to_string(lhs), to_string(rhs)));
  }
  for (size_t i = 0; i < lhs.size(); ++i) {
    const int64_t a = call.operands[0].shape[static_cast<size_t>(lhs[i])];
    const int64_t b = call.operands[1].shape[static_cast<size_t>(rhs[i])];
    if (a != b) {
      refuse(kDotGeneral, call,
             fmt::format("{} axes {} and {} must be of one extent", role, lhs[i], rhs[i]));
    }
  }
}

std::vector<Type> infer_dot_general(const Call& call) {
  expect_operands(kDotGeneral, call, 2);
  expect_kind(kDotGeneral, call, 0, kFloats);
  const DType dtype = call.attributes.dtype("dtype");
  if (call.operands[0].dtype != call.operands[1].dtype) {
    refuse(kDotGeneral, call, "operands must be of one element type");
  }
  if (!is_float(dtype)) {
    refuse(kDotGeneral, call,
           fmt::format("the result must be of floats, not {}; operands", dtype_name(dtype)));
  }
  expect_side(call, 0, "lhs_batch", "lhs_contract");
  expect_side(call, 1, "rhs_batch", "rhs_contract");
  const Side lhs = lhs_side(call.attributes, call.operands[0]);
  const Side rhs = rhs_side(call.attributes, call.operands[1]);
  expect_paired(call, "batch", lhs.batch, rhs.batch);
  expect_paired(call, "contracted", lhs.contract, rhs.contract);
  Type result{dtype, {}};
  const auto take = [&](const Type& from, const std::vector<int64_t>& axes) {
    for (int64_t axis : axes) result.shape.push_back(from.shape[static_cast<size_t>(axis)]);
  };
  take(call.operands[0], lhs.batch);
  take(call.operands[0], lhs.free);
  take(call.operands[1], rhs.free);
  return {std::move(result)};
}

std::vector<int64_t> range(size_t first, size_t count) {
  std::vector<int64_t> axes(count);
  for (size_t i = 0; i < count; ++i) axes[i] = static_cast<int64_t>(first + i);
  return axes;
}

// The cotangent of the operand whose axes are `mine`: that of the result contracted with the other
// operand over the other's free axes, which begin at `other_free` in the result. The order of the
// two is chosen so that the product, where it can, needs no transpose.
Value side_gradient(Value g, Value other, DType dtype, const Side& mine, const Side& others,
                    size_t other_free) {
  const DType wide = dtype_bits(g.dtype()) > dtype_bits(other.dtype()) ? g.dtype() : other.dtype();
  g = convert(g, wide);
  other = convert(other, wide);
  const std::vector<int64_t> batch = range(0, mine.batch.size());
  const std::vector<int64_t> summed = range(other_free, others.free.size());

  // The other's contracted axes come out in their order there; each stands for its partner here.
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (size_t i = 0; i < others.contract.size(); ++i) {
    pairs.emplace_back(others.contract[i], mine.contract[i]);
  }
  std::sort(pairs.begin(), pairs.end());
  std::vector<int64_t> contracted;
  for (const auto& pair : pairs) contracted.push_back(pair.second);

  const bool free_first =
      contracted.empty() || (!mine.free.empty() && mine.free[0] < contracted[0]);
  std::vector<int64_t> axes = mine.batch;  // of the operand, in the order of the product's axes
  const std::vector<int64_t>& second = free_first ? mine.free : contracted;
  const std::vector<int64_t>& third = free_first ? contracted : mine.free;
  axes.insert(axes.end(), second.begin(), second.end());
  axes.insert(axes.end(), third.begin(), third.end());
  std::vector<int64_t> permutation(axes.size());
  for (size_t i = 0; i < axes.size(); ++i) {
    permutation[static_cast<size_t>(axes[i])] = static_cast<int64_t>(i);
  }
  const Value product = free_first ? dot_general(g, other,
                                                 {.lhs_contract = summed,
                                                  .rhs_contract = others.free,
                                                  .lhs_batch = batch,
                                                  .rhs_batch = others.batch},
                                                 dtype)
                                   : dot_general(other, g,
                                                 {.lhs_contract = others.free,
                                                  .rhs_contract = summed,
                                                  .lhs_batch = others.batch,
                                                  .rhs_batch = batch},
                                                 dtype);
  return transpose(product, permutation);
}

void dot_general_gradient(GradientContext& c) {
  const Value a = c.operand(0), b = c.operand(1), g = c.cotangent(0);
  const Side lhs = lhs_side(c.attributes(), a.type()), rhs = rhs_side(c.attributes(), b.type());
  const size_t lhs_free = lhs.batch.size(), rhs_free = lhs_free + lhs.free.size();
  if (c.needs(0)) c.set(0, side_gradient(g, b, a.dtype(), lhs, rhs, rhs_free));
  if (c.needs(1)) c.set(1, side_gradient(g, a, b.dtype(), rhs, lhs, lhs_free));
}

}  // namespace

const Op kReduceSum{.name = "reduce_sum",
                    .primitive = true,
                    .infer = infer_reduce<kReduceSum>,
                    .gradient = reduce_sum_gradient};
const Op kReduceMax{.name = "reduce_max",
                    .primitive = true,
                    .infer = infer_reduce<kReduceMax>,
                    .gradient = reduce_max_gradient};
const Op kDotGeneral{.name = "dot_general",
                     .primitive = true,
                     .infer = infer_dot_general,
                     .gradient = dot_general_gradient,
                     .expensive = true};

Value reduce_sum(Value x, const std::vector<int64_t>& axes) { return reduce(kReduceSum, x, axes); }
Value reduce_max(Value x, const std::vector<int64_t>& axes) { return reduce(kReduceMax, x, axes); }

Value dot_general(Value a, Value b, const DotDimensions& dimensions) {
  return dot_general(a, b, dimensions, a.dtype());
}

Value dot_general(Value a, Value b, const DotDimensions& dimensions, DType dtype) {
  return a.graph().add1(kDotGeneral, {a, b},
                        {{"lhs_batch", dimensions.lhs_batch},
                         {"rhs_batch", dimensions.rhs_batch},
                         {"lhs_contract", dimensions.lhs_contract},
                         {"rhs_contract", dimensions.rhs_contract},
                         {"dtype", dtype}});
}

}  // namespace graft
