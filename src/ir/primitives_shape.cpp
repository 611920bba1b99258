// Primitives that move elements: shape rules, gradients and builders.
//
// The cotangent of a low-precision value may come in f32; it is moved as it is, never rounded here.

#include <algorithm>
#include <numeric>

#include "ir/autodiff.h"
#include "ir/primitives.h"
#include "ir/shape_rules.h"

namespace graft {
namespace {

int64_t rank_of(const Type& type) { return static_cast<int64_t>(type.shape.size()); }

// An axis that may count from the end.
int64_t absolute_axis(Value x, int64_t axis) { return axis < 0 ? axis + x.rank() : axis; }

std::vector<Type> infer_broadcast_in_dim(const Call& call) {
  const Op& op = kBroadcastInDim;
  expect_operands(op, call, 1);
  const Type& x = call.operands[0];
  const Shape& shape = call.attributes.integers("shape");
  const std::vector<int64_t>& dims = call.attributes.integers("dims");
  element_count(shape);
  if (dims.size() != x.shape.size() || dims.size() > shape.size()) {
    refuse(op, call,
           fmt::format("dims {} must name one axis of {} for each of the operand's",
                       to_string(dims), to_string(shape)));
  }
  expect_axes(op, call, dims, static_cast<int64_t>(shape.size()), true);
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t to = shape[static_cast<size_t>(dims[i])];
    if (x.shape[i] != to && x.shape[i] != 1) {
      refuse(op, call,
             fmt::format("axis {} must be 1 or {} to become axis {} of {}", i, to, dims[i],
                         to_string(shape)));
    }
  }
  return {{x.dtype, shape}};
}

void broadcast_in_dim_gradient(GradientContext& c) {
  const Shape from = c.operand(0).shape(), to = c.result(0).shape();
  const std::vector<int64_t> dims = c.attributes().integers("dims");
  std::vector<int64_t> summed = other_axes(static_cast<int64_t>(to.size()), dims);
  for (size_t i = 0; i < dims.size(); ++i) {
    if (from[i] != to[static_cast<size_t>(dims[i])]) summed.push_back(dims[i]);
  }
  c.set(0, reshape(reduce_sum(c.cotangent(0), summed), from));
}

std::vector<Type> infer_reshape(const Call& call) {
  expect_operands(kReshape, call, 1);
  const Shape& shape = call.attributes.integers("shape");
  if (element_count(shape) != call.operands[0].elements()) {
    refuse(kReshape, call,
           fmt::format("{} must have as many elements as the operand", to_string(shape)));
  }
  return {{call.operands[0].dtype, shape}};
}

std::vector<Type> infer_transpose(const Call& call) {
  expect_operands(kTranspose, call, 1);
  const Type& x = call.operands[0];
  const std::vector<int64_t>& permutation = call.attributes.integers("permutation");
  if (permutation.size() != x.shape.size()) {
    refuse(
        kTranspose, call,
        fmt::format("permutation {} must name every axis of the operand", to_string(permutation)));
  }
  expect_axes(kTranspose, call, permutation, rank_of(x), false);
  Shape shape;
  for (int64_t axis : permutation) shape.push_back(x.shape[static_cast<size_t>(axis)]);
  return {{x.dtype, std::move(shape)}};
}

void transpose_gradient(GradientContext& c) {
  const std::vector<int64_t> permutation = c.attributes().integers("permutation");
  std::vector<int64_t> inverse(permutation.size());
  for (size_t i = 0; i < permutation.size(); ++i) {
    inverse[static_cast<size_t>(permutation[i])] = static_cast<int64_t>(i);
  }
  c.set(0, transpose(c.cotangent(0), inverse));
}

std::vector<Type> infer_slice(const Call& call) {
  expect_operands(kSlice, call, 1);
  const Type& x = call.operands[0];
  const auto& start = call.attributes.integers("start");
  const auto& limit = call.attributes.integers("limit");
  const auto& stride = call.attributes.integers("stride");
  if (start.size() != x.shape.size() || limit.size() != x.shape.size() ||
      stride.size() != x.shape.size()) {
    refuse(kSlice, call,
           fmt::format("start {}, limit {}, stride {} must have an entry for each axis",
                       to_string(start), to_string(limit), to_string(stride)));
  }
  Shape shape;
  for (size_t i = 0; i < start.size(); ++i) {
    if (start[i] < 0 || start[i] > limit[i] || limit[i] > x.shape[i] || stride[i] < 1) {
      refuse(kSlice, call,
             fmt::format("start {}, limit {}, stride {} must lie within axis {}", start[i],
                         limit[i], stride[i], i));
    }
    shape.push_back((limit[i] - start[i] + stride[i] - 1) / stride[i]);
  }
  return {{x.dtype, std::move(shape)}};
}

Value pad_axes(Value x, const std::vector<int64_t>& low, const std::vector<int64_t>& high,
               double value) {
  const Value fill = scalar(x.graph(), value, x.dtype());
  return x.graph().add1(kPad, {x, fill}, {{"low", low}, {"high", high}});
}

Value slice_axes(Value x, const std::vector<int64_t>& start, const std::vector<int64_t>& limit) {
  const std::vector<int64_t> stride(start.size(), 1);
  return x.graph().add1(kSlice, {x}, {{"start", start}, {"limit", limit}, {"stride", stride}});
}

// Puts stride - 1 zeros after each element along an axis: as a new innermost axis of that many,
// folded in.
Value dilate(Value x, size_t axis, int64_t stride) {
  Shape split = x.shape();
  split.insert(split.begin() + static_cast<std::ptrdiff_t>(axis) + 1, 1);
  Shape folded = x.shape();
  folded[axis] *= stride;
  return reshape(pad(reshape(x, split), static_cast<int>(axis) + 1, 0, stride - 1), folded);
}

void slice_gradient(GradientContext& c) {
  const Shape shape = c.operand(0).shape();
  const std::vector<int64_t> start = c.attributes().integers("start");
  const std::vector<int64_t> limit = c.attributes().integers("limit");
  const std::vector<int64_t> stride = c.attributes().integers("stride");
  Value g = c.cotangent(0);
  std::vector<int64_t> high(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) {
    if (stride[i] > 1) {
      g = slice(dilate(g, i, stride[i]), static_cast<int>(i), 0, limit[i] - start[i]);
    }
    high[i] = shape[i] - limit[i];
  }
  c.set(0, pad_axes(g, start, high, 0));
}

std::vector<Type> infer_pad(const Call& call) {
  expect_operands(kPad, call, 2);
  const Type& x = call.operands[0];
  if (call.operands[1] != Type{x.dtype, {}}) {
    refuse(kPad, call, "operand 1 must be a scalar of the type of operand 0");
  }
  const auto& low = call.attributes.integers("low");
  const auto& high = call.attributes.integers("high");
  if (low.size() != x.shape.size() || high.size() != x.shape.size()) {
    refuse(kPad, call,
           fmt::format("low {} and high {} must have an entry for each axis", to_string(low),
                       to_string(high)));
  }
  Shape shape;
  for (size_t i = 0; i < low.size(); ++i) {
    if (low[i] < 0 || high[i] < 0) {
      refuse(
          kPad, call,
          fmt::format("low {} and high {} must not be negative", to_string(low), to_string(high)));
    }
    int64_t extent = 0;
    if (__builtin_add_overflow(x.shape[i], low[i], &extent) ||
        __builtin_add_overflow(extent, high[i], &extent)) {
      refuse(kPad, call,
             fmt::format("low {} and high {} are too large", to_string(low), to_string(high)));
    }
    shape.push_back(extent);
  }
  return {{x.dtype, std::move(shape)}};
}

void pad_gradient(GradientContext& c) {
  const Value g = c.cotangent(0);
  const Shape shape = c.operand(0).shape();
  const std::vector<int64_t> low = c.attributes().integers("low");
  const std::vector<int64_t> high = c.attributes().integers("high");
  std::vector<int64_t> limit(low.size());
  for (size_t i = 0; i < low.size(); ++i) limit[i] = low[i] + shape[i];
  const Value inside = slice_axes(g, low, limit);
  c.set(0, inside);
  if (c.needs(1)) {
    std::vector<int64_t> axes(shape.size());
    std::iota(axes.begin(), axes.end(), 0);
    c.set(1, reduce_sum(g - pad_axes(inside, low, high, 0), axes));
  }
}

std::vector<Type> infer_concatenate(const Call& call) {
  if (call.operands.empty()) refuse(kConcatenate, call, "needs at least one operand");
  const int64_t axis = call.attributes.i64("axis");
  expect_axes(kConcatenate, call, {axis}, rank_of(call.operands[0]), false);
  Type result = call.operands[0];
  for (const Type& each : call.operands.subspan(1)) {
    Type expected = call.operands[0];
    if (rank_of(each) == rank_of(expected)) {
      expected.shape[static_cast<size_t>(axis)] = each.shape[static_cast<size_t>(axis)];
    }
    if (each != expected) {
      refuse(kConcatenate, call, fmt::format("operands must agree but for axis {}", axis));
    }
    result.shape[static_cast<size_t>(axis)] += each.shape[static_cast<size_t>(axis)];
  }
  return {std::move(result)};
}

void concatenate_gradient(GradientContext& c) {
  const int axis = static_cast<int>(c.attributes().i64("axis"));
  int64_t begin = 0;
  for (size_t i = 0; i < c.operand_count(); ++i) {
    const int64_t end = begin + c.operand(i).dim(axis);
    if (c.needs(i)) c.set(i, slice(c.cotangent(0), axis, begin, end));
    begin = end;
  }
}

// Operands from `first` on are one s32 scalar for each of `rank` axes.
void expect_starts(const Op& op, const Call& call, size_t first, int64_t rank) {
  expect_operands(op, call, first + static_cast<size_t>(rank));
  for (const Type& start : call.operands.subspan(first)) {
    if (start != Type{DType::kS32, {}}) refuse(op, call, "starts must be s32 scalars");
  }
}

std::vector<Type> infer_dynamic_slice(const Call& call) {
  const Op& op = kDynamicSlice;
  if (call.operands.empty()) refuse(op, call, "takes an array and a start for each axis");
  const Type& x = call.operands[0];
  expect_starts(op, call, 1, rank_of(x));
  const Shape& sizes = call.attributes.integers("sizes");
  bool fits = sizes.size() == x.shape.size();
  for (size_t i = 0; fits && i < sizes.size(); ++i) fits = sizes[i] >= 0 && sizes[i] <= x.shape[i];
  if (!fits) {
    refuse(op, call, fmt::format("sizes {} must fit into operand 0", to_string(sizes)));
  }
  return {{x.dtype, sizes}};
}

std::vector<Type> infer_dynamic_update_slice(const Call& call) {
  const Op& op = kDynamicUpdateSlice;
  if (call.operands.size() < 2) refuse(op, call, "takes an array, an update and their starts");
  const Type &x = call.operands[0], &update = call.operands[1];
  expect_starts(op, call, 2, rank_of(x));
  bool fits = update.dtype == x.dtype && update.shape.size() == x.shape.size();
  for (size_t i = 0; fits && i < x.shape.size(); ++i) fits = update.shape[i] <= x.shape[i];
  if (!fits) refuse(op, call, "operand 1 must fit into operand 0");
  return {x};
}

std::vector<Value> starts_from(const GradientContext& c, size_t first) {
  std::vector<Value> starts;
  for (size_t i = first; i < c.operand_count(); ++i) starts.push_back(c.operand(i));
  return starts;
}

void dynamic_slice_gradient(GradientContext& c) {
  if (!c.needs(0)) return;
  const Value g = c.cotangent(0);
  const Value zeros = splat(c.graph(), 0, {g.dtype(), c.operand(0).shape()});
  c.set(0, dynamic_update_slice(zeros, g, starts_from(c, 1)));
}

void dynamic_update_slice_gradient(GradientContext& c) {
  const std::vector<Value> starts = starts_from(c, 2);
  const Value g = c.cotangent(0);
  const Shape shape = c.operand(1).shape();
  if (c.needs(0)) {
    c.set(0, dynamic_update_slice(g, splat(c.graph(), 0, {g.dtype(), shape}), starts));
  }
  if (c.needs(1)) c.set(1, dynamic_slice(g, starts, shape));
}

}  // namespace

const Op kBroadcastInDim{.name = "broadcast_in_dim",
                         .primitive = true,
                         .infer = infer_broadcast_in_dim,
                         .gradient = broadcast_in_dim_gradient};
const Op kReshape{.name = "reshape",
                  .primitive = true,
                  .infer = infer_reshape,
                  .gradient = [](GradientContext& c) {
                    c.set(0, reshape(c.cotangent(0), Shape(c.operand(0).shape())));
                  }};
const Op kTranspose{.name = "transpose",
                    .primitive = true,
                    .infer = infer_transpose,
                    .gradient = transpose_gradient};
const Op kSlice{
    .name = "slice", .primitive = true, .infer = infer_slice, .gradient = slice_gradient};
const Op kPad{.name = "pad", .primitive = true, .infer = infer_pad, .gradient = pad_gradient};
const Op kConcatenate{.name = "concatenate",
                      .primitive = true,
                      .infer = infer_concatenate,
                      .gradient = concatenate_gradient};
const Op kDynamicSlice{.name = "dynamic_slice",
                       .primitive = true,
                       .infer = infer_dynamic_slice,
                       .gradient = dynamic_slice_gradient};
const Op kDynamicUpdateSlice{.name = "dynamic_update_slice",
                             .primitive = true,
                             .infer = infer_dynamic_update_slice,
                             .gradient = dynamic_update_slice_gradient};

Value broadcast_in_dim(Value x, const Shape& shape, const std::vector<int64_t>& dims) {
  if (x.shape() == shape) return x;
  return x.graph().add1(kBroadcastInDim, {x}, {{"shape", shape}, {"dims", dims}});
}

Value broadcast_to(Value x, const Shape& shape) {
  std::vector<int64_t> dims(x.shape().size());
  const auto first = static_cast<int64_t>(shape.size()) - static_cast<int64_t>(dims.size());
  std::iota(dims.begin(), dims.end(), first);
  return broadcast_in_dim(x, shape, dims);
}

Value reshape(Value x, const Shape& shape) {
  Shape resolved = shape;
  const auto unknown = std::find(resolved.begin(), resolved.end(), -1);
  if (unknown != resolved.end()) {
    *unknown = 1;
    const int64_t known = element_count(resolved);
    if (known == 0 || x.type().elements() % known != 0) {
      throw Error(fmt::format("reshape: {} does not divide into {}", to_string(x.type()),
                              to_string(shape)));
    }
    *unknown = x.type().elements() / known;
  }
  if (x.shape() == resolved) return x;
  return x.graph().add1(kReshape, {x}, {{"shape", std::move(resolved)}});
}

Value transpose(Value x, const std::vector<int64_t>& permutation) {
  if (std::is_sorted(permutation.begin(), permutation.end()) &&
      other_axes(x.rank(), permutation).empty() && permutation.size() == x.shape().size()) {
    return x;
  }
  return x.graph().add1(kTranspose, {x}, {{"permutation", permutation}});
}

Value slice(Value x, int axis, int64_t begin, int64_t limit) {
  const int64_t which = absolute_axis(x, axis);
  std::vector<int64_t> starts(x.shape().size(), 0), limits = x.shape();
  if (which < 0 || which >= x.rank()) {
    throw Error(fmt::format("slice: axis {} does not exist in {}", axis, to_string(x.type())));
  }
  if (begin == 0 && limit == x.dim(static_cast<int>(which))) return x;
  starts[static_cast<size_t>(which)] = begin;
  limits[static_cast<size_t>(which)] = limit;
  return slice_axes(x, starts, limits);
}

Value pad(Value x, int axis, int64_t low, int64_t high, double value) {
  const int64_t which = absolute_axis(x, axis);
  if (which < 0 || which >= x.rank()) {
    throw Error(fmt::format("pad: axis {} does not exist in {}", axis, to_string(x.type())));
  }
  if (low == 0 && high == 0) return x;
  std::vector<int64_t> lows(x.shape().size(), 0), highs(x.shape().size(), 0);
  lows[static_cast<size_t>(which)] = low;
  highs[static_cast<size_t>(which)] = high;
  return pad_axes(x, lows, highs, value);
}

Value concatenate(std::span<const Value> parts, int axis) {
  GRAFT_CHECK(!parts.empty(), "concatenate of nothing");
  if (parts.size() == 1) return parts[0];
  return parts[0].graph().add1(kConcatenate, parts, {{"axis", absolute_axis(parts[0], axis)}});
}

Value dynamic_slice(Value x, std::span<const Value> starts, const Shape& sizes) {
  std::vector<Value> operands = {x};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return x.graph().add1(kDynamicSlice, operands, {{"sizes", sizes}});
}

Value dynamic_update_slice(Value x, Value update, std::span<const Value> starts) {
  std::vector<Value> operands = {x, update};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return x.graph().add1(kDynamicUpdateSlice, operands);
}

}  // namespace graft
