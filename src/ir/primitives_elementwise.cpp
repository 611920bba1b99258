// Elementwise primitives: shape rules, gradients and builders.
//
// Where a gradient is not unique (max and min of equal operands) it is shared equally.

#include <cmath>

#include "ir/autodiff.h"
#include "ir/primitives.h"
#include "ir/shape_rules.h"

namespace graft {
namespace {

// `count` operands of one type and of the given kinds; the result is of that type.
template <const Op& op, size_t count, unsigned kinds>
std::vector<Type> infer_same(const Call& call) {
  expect_operands(op, call, count);
  for (size_t i = 0; i < count; ++i) {
    expect_kind(op, call, i, kinds);
    if (call.operands[i] != call.operands[0]) refuse(op, call, "operands must be of one type");
  }
  return {call.operands[0]};
}

template <const Op& op, size_t count, unsigned kinds>
std::vector<Type> infer_predicate(const Call& call) {
  return {{DType::kBool, infer_same<op, count, kinds>(call)[0].shape}};
}

std::vector<Type> infer_convert(const Call& call) {
  expect_operands(kConvert, call, 1);
  return {{call.attributes.dtype("dtype"), call.operands[0].shape}};
}

std::vector<Type> infer_compare(const Call& call) {
  const std::string& direction = call.attributes.text("direction");
  for (const char* known : {"EQ", "NE", "LT", "LE", "GT", "GE"}) {
    if (direction == known) return infer_predicate<kCompare, 2, kFloats | kIntegers | kBools>(call);
  }
  refuse(kCompare, call,
         fmt::format("direction \"{}\" must be one of EQ, NE, LT, LE, GT, GE", direction));
}

std::vector<Type> infer_select(const Call& call) {
  expect_operands(kSelect, call, 3);
  expect_kind(kSelect, call, 0, kBools);
  if (call.operands[1] != call.operands[2]) {
    refuse(kSelect, call, "operands 1 and 2 must be of one type");
  }
  if (call.operands[0].shape != call.operands[1].shape) {
    refuse(kSelect, call, "operands must be of one shape");
  }
  return {call.operands[1]};
}

// In the type of the result: the cotangent of a low-precision value may come in f32.
Value cotangent_of(GradientContext& c) { return convert(c.cotangent(0), c.result(0).dtype()); }

// Piecewise constant: the gradient exists and is zero, so nothing flows to the operand.
void zero_gradient(GradientContext&) {}

void pow_gradient(GradientContext& c) {
  const Value a = c.operand(0), b = c.operand(1), g = cotangent_of(c);
  const Value zero = zeros_like(a);
  if (c.needs(0)) {
    // Where b is 0, a^b is constant; the formula would give 0 * inf at a = 0.
    c.set(0, select(equal(b, zero), zero, g * b * power(a, b - 1)));
  }
  if (c.needs(1)) {
    const Value positive = select(equal(a, zero), zero + 1, a);  // 0^b is constant in b > 0
    c.set(1, g * c.result(0) * log(positive));
  }
}

// The share of the cotangent that goes to the operand that `wins`, and half of it where both are
// equal.
void extremum_gradient(GradientContext& c, Value first_wins, Value second_wins) {
  const Value g = cotangent_of(c);
  const Value half = g * 0.5, zero = zeros_like(g);
  if (c.needs(0)) c.set(0, select(first_wins, g, select(second_wins, zero, half)));
  if (c.needs(1)) c.set(1, select(second_wins, g, select(first_wins, zero, half)));
}

// A scalar operand takes the shape of the other.
void align(Value& a, Value& b) {
  if (a.rank() == 0 && b.rank() != 0) a = broadcast_in_dim(a, Shape(b.shape()), {});
  if (b.rank() == 0 && a.rank() != 0) b = broadcast_in_dim(b, Shape(a.shape()), {});
}

Value binary(const Op& op, Value a, Value b) {
  align(a, b);
  return a.graph().add1(op, {a, b});
}

Value splat_like(Value x, double value) { return splat(x.graph(), value, Type(x.type())); }

Value compare(const char* direction, Value a, Value b) {
  align(a, b);
  return a.graph().add1(kCompare, {a, b}, {{"direction", direction}});
}

}  // namespace

constexpr unsigned kNumbers = kFloats | kIntegers;
constexpr unsigned kBitwise = kIntegers | kBools;

const Op kNeg{.name = "neg",
              .primitive = true,
              .infer = infer_same<kNeg, 1, kNumbers>,
              .gradient = [](GradientContext& c) { c.set(0, -cotangent_of(c)); }};
const Op kExp{.name = "exp",
              .primitive = true,
              .infer = infer_same<kExp, 1, kFloats>,
              .gradient = [](GradientContext& c) { c.set(0, cotangent_of(c) * c.result(0)); }};
const Op kLog{.name = "log",
              .primitive = true,
              .infer = infer_same<kLog, 1, kFloats>,
              .gradient = [](GradientContext& c) { c.set(0, cotangent_of(c) / c.operand(0)); }};
const Op kLog1p{
    .name = "log1p",
    .primitive = true,
    .infer = infer_same<kLog1p, 1, kFloats>,
    .gradient = [](GradientContext& c) { c.set(0, cotangent_of(c) / (c.operand(0) + 1)); }};
const Op kSqrt{
    .name = "sqrt",
    .primitive = true,
    .infer = infer_same<kSqrt, 1, kFloats>,
    .gradient = [](GradientContext& c) { c.set(0, cotangent_of(c) * 0.5 / c.result(0)); }};
const Op kRsqrt{.name = "rsqrt",
                .primitive = true,
                .infer = infer_same<kRsqrt, 1, kFloats>,
                .gradient = [](GradientContext& c) {
                  const Value y = c.result(0);
                  c.set(0, cotangent_of(c) * -0.5 * (y * y * y));
                }};
const Op kTanh{.name = "tanh",
               .primitive = true,
               .infer = infer_same<kTanh, 1, kFloats>,
               .gradient = [](GradientContext& c) {
                 const Value y = c.result(0);
                 c.set(0, cotangent_of(c) * (1 - y * y));
               }};
const Op kLogistic{.name = "logistic",
                   .primitive = true,
                   .infer = infer_same<kLogistic, 1, kFloats>,
                   .gradient = [](GradientContext& c) {
                     const Value y = c.result(0);
                     c.set(0, cotangent_of(c) * (y * (1 - y)));
                   }};
const Op kCos{
    .name = "cos",
    .primitive = true,
    .infer = infer_same<kCos, 1, kFloats>,
    .gradient = [](GradientContext& c) { c.set(0, -(cotangent_of(c) * sin(c.operand(0)))); }};
const Op kSin{
    .name = "sin",
    .primitive = true,
    .infer = infer_same<kSin, 1, kFloats>,
    .gradient = [](GradientContext& c) { c.set(0, cotangent_of(c) * cos(c.operand(0))); }};
const Op kAbs{
    .name = "abs",
    .primitive = true,
    .infer = infer_same<kAbs, 1, kFloats | kSigned>,
    .gradient = [](GradientContext& c) { c.set(0, cotangent_of(c) * sign(c.operand(0))); }};
const Op kFloor{.name = "floor",
                .primitive = true,
                .infer = infer_same<kFloor, 1, kFloats>,
                .gradient = zero_gradient};
const Op kSign{.name = "sign",
               .primitive = true,
               .infer = infer_same<kSign, 1, kFloats | kSigned>,
               .gradient = zero_gradient};
const Op kNot{.name = "not", .primitive = true, .infer = infer_same<kNot, 1, kBitwise>};
const Op kIsFinite{
    .name = "is_finite", .primitive = true, .infer = infer_predicate<kIsFinite, 1, kFloats>};
const Op kConvert{.name = "convert",
                  .primitive = true,
                  .infer = infer_convert,
                  .gradient = [](GradientContext& c) {
                    c.set(0, convert(c.cotangent(0), c.operand(0).dtype()));
                  }};

const Op kAdd{.name = "add",
              .primitive = true,
              .infer = infer_same<kAdd, 2, kNumbers>,
              .gradient = [](GradientContext& c) {
                c.set(0, cotangent_of(c));
                c.set(1, cotangent_of(c));
              }};
const Op kSub{.name = "sub",
              .primitive = true,
              .infer = infer_same<kSub, 2, kNumbers>,
              .gradient = [](GradientContext& c) {
                c.set(0, cotangent_of(c));
                if (c.needs(1)) c.set(1, -cotangent_of(c));
              }};
const Op kMul{.name = "mul",
              .primitive = true,
              .infer = infer_same<kMul, 2, kNumbers>,
              .gradient = [](GradientContext& c) {
                if (c.needs(0)) c.set(0, cotangent_of(c) * c.operand(1));
                if (c.needs(1)) c.set(1, cotangent_of(c) * c.operand(0));
              }};
const Op kDiv{.name = "div",
              .primitive = true,
              .infer = infer_same<kDiv, 2, kNumbers>,
              .gradient = [](GradientContext& c) {
                const Value over = cotangent_of(c) / c.operand(1);
                c.set(0, over);
                if (c.needs(1)) c.set(1, -(over * c.result(0)));
              }};
const Op kMax{.name = "max",
              .primitive = true,
              .infer = infer_same<kMax, 2, kNumbers>,
              .gradient = [](GradientContext& c) {
                const Value a = c.operand(0), b = c.operand(1);
                extremum_gradient(c, greater(a, b), less(a, b));
              }};
const Op kMin{.name = "min",
              .primitive = true,
              .infer = infer_same<kMin, 2, kNumbers>,
              .gradient = [](GradientContext& c) {
                const Value a = c.operand(0), b = c.operand(1);
                extremum_gradient(c, less(a, b), greater(a, b));
              }};
const Op kPow{.name = "pow",
              .primitive = true,
              .infer = infer_same<kPow, 2, kFloats>,
              .gradient = pow_gradient};
const Op kAnd{.name = "and", .primitive = true, .infer = infer_same<kAnd, 2, kBitwise>};
const Op kOr{.name = "or", .primitive = true, .infer = infer_same<kOr, 2, kBitwise>};
const Op kXor{.name = "xor", .primitive = true, .infer = infer_same<kXor, 2, kBitwise>};
const Op kShiftLeft{
    .name = "shift_left", .primitive = true, .infer = infer_same<kShiftLeft, 2, kIntegers>};
const Op kShiftRight{
    .name = "shift_right", .primitive = true, .infer = infer_same<kShiftRight, 2, kIntegers>};
const Op kCompare{.name = "compare", .primitive = true, .infer = infer_compare};
const Op kSelect{
    .name = "select", .primitive = true, .infer = infer_select, .gradient = [](GradientContext& c) {
      const Value condition = c.operand(0), g = cotangent_of(c);
      const Value zero = zeros_like(g);
      if (c.needs(1)) c.set(1, select(condition, g, zero));
      if (c.needs(2)) c.set(2, select(condition, zero, g));
    }};

Value operator+(Value a, Value b) { return binary(kAdd, a, b); }
Value operator-(Value a, Value b) { return binary(kSub, a, b); }
Value operator*(Value a, Value b) { return binary(kMul, a, b); }
Value operator/(Value a, Value b) { return binary(kDiv, a, b); }
Value operator-(Value a) { return a.graph().add1(kNeg, {a}); }
Value operator+(Value a, double b) { return a + splat_like(a, b); }
Value operator-(Value a, double b) { return a - splat_like(a, b); }
Value operator*(Value a, double b) { return a * splat_like(a, b); }
Value operator/(Value a, double b) { return a / splat_like(a, b); }
Value operator+(double a, Value b) { return splat_like(b, a) + b; }
Value operator-(double a, Value b) { return splat_like(b, a) - b; }
Value operator*(double a, Value b) { return splat_like(b, a) * b; }
Value operator/(double a, Value b) { return splat_like(b, a) / b; }
Value maximum(Value a, Value b) { return binary(kMax, a, b); }
Value minimum(Value a, Value b) { return binary(kMin, a, b); }
Value power(Value a, Value b) { return binary(kPow, a, b); }

Value exp(Value x) { return x.graph().add1(kExp, {x}); }
Value log(Value x) { return x.graph().add1(kLog, {x}); }
Value log1p(Value x) { return x.graph().add1(kLog1p, {x}); }
Value sqrt(Value x) { return x.graph().add1(kSqrt, {x}); }
Value rsqrt(Value x) { return x.graph().add1(kRsqrt, {x}); }
Value tanh(Value x) { return x.graph().add1(kTanh, {x}); }
Value logistic(Value x) { return x.graph().add1(kLogistic, {x}); }
Value cos(Value x) { return x.graph().add1(kCos, {x}); }
Value sin(Value x) { return x.graph().add1(kSin, {x}); }
Value abs(Value x) { return x.graph().add1(kAbs, {x}); }
Value floor(Value x) { return x.graph().add1(kFloor, {x}); }
Value sign(Value x) { return x.graph().add1(kSign, {x}); }
Value is_finite(Value x) { return x.graph().add1(kIsFinite, {x}); }
Value logical_not(Value x) { return x.graph().add1(kNot, {x}); }

Value convert(Value x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return x.graph().add1(kConvert, {x}, {{"dtype", dtype}});
}

Value operator&(Value a, Value b) { return binary(kAnd, a, b); }
Value operator|(Value a, Value b) { return binary(kOr, a, b); }
Value operator^(Value a, Value b) { return binary(kXor, a, b); }
Value shift_left(Value x, int bits) { return binary(kShiftLeft, x, splat_like(x, bits)); }
Value shift_right(Value x, int bits) { return binary(kShiftRight, x, splat_like(x, bits)); }

Value equal(Value a, Value b) { return compare("EQ", a, b); }
Value not_equal(Value a, Value b) { return compare("NE", a, b); }
Value less(Value a, Value b) { return compare("LT", a, b); }
Value less_equal(Value a, Value b) { return compare("LE", a, b); }
Value greater(Value a, Value b) { return compare("GT", a, b); }
Value greater_equal(Value a, Value b) { return compare("GE", a, b); }

Value select(Value condition, Value if_true, Value if_false) {
  align(if_true, if_false);
  if (condition.rank() == 0 && if_true.rank() != 0) {
    condition = broadcast_in_dim(condition, Shape(if_true.shape()), {});
  }
  if (if_true.rank() == 0 && condition.rank() != 0) {
    const Shape shape = condition.shape();
    if_true = broadcast_in_dim(if_true, shape, {});
    if_false = broadcast_in_dim(if_false, shape, {});
  }
  return condition.graph().add1(kSelect, {condition, if_true, if_false});
}

}  // namespace graft
