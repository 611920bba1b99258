// What each primitive computes, on values worked out by hand, and what its shape rule refuses.

#include "ir/primitives.h"
#include "ir/logical_axes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ir/scan.h"
#include "support/evaluate.h"

namespace graft {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using testing::evaluate;
using testing::evaluate1;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::IsNan;
using Values = std::vector<Value>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

Tensor floats(const Shape& shape, const std::vector<float>& values) {
  return Tensor::of<float>(shape, values);
}
Tensor ints(const Shape& shape, const std::vector<int32_t>& values) {
  return Tensor::of<int32_t>(shape, values);
}
Tensor words(const Shape& shape, const std::vector<uint32_t>& values) {
  return Tensor::of<uint32_t>(shape, values);
}
// 0, 1, 2, ...
Tensor counting(const Shape& shape) {
  Tensor t = Tensor::empty(DType::kF32, shape);
  for (int64_t i = 0; i < t.elements(); ++i) t.data<float>()[i] = static_cast<float>(i);
  return t;
}

template <typename T>
std::vector<T> list(const Tensor& t) {
  return {t.span<T>().begin(), t.span<T>().end()};
}

std::vector<float> apply(Value (*f)(Value), const std::vector<float>& x) {
  return list<float>(evaluate1({floats({static_cast<int64_t>(x.size())}, x)},
                               [&](Graph&, const Values& in) { return f(in[0]); }));
}

template <typename T>
std::vector<T> apply(const std::function<Value(Value, Value)>& f, const std::vector<T>& a,
                     const std::vector<T>& b) {
  const Shape shape = {static_cast<int64_t>(a.size())};
  return list<T>(evaluate1({Tensor::of<T>(shape, a), Tensor::of<T>(shape, b)},
                           [&](Graph&, const Values& in) { return f(in[0], in[1]); }));
}

TEST(Primitive, Constants) {
  const std::vector<Tensor> out = evaluate({}, [](Graph& g, const Values&) {
    return Values{literal(g, ints({2}, {7, -1})),
                  splat(g, 0.1, {DType::kF32, {2}}),
                  splat(g, 4294967295.0, {DType::kU32, {1}}),
                  splat(g, 1, {DType::kBool, {1}}),
                  splat(g, 1.0 / 3, {DType::kBF16, {1}}),
                  iota(g, {DType::kS32, {2, 3}}, 1),
                  iota(g, {DType::kF32, {2, 3}}, -2)};
  });
  EXPECT_THAT(list<int32_t>(out[0]), ElementsAre(7, -1));
  EXPECT_THAT(list<float>(out[1]), ElementsAre(0.1f, 0.1f));
  EXPECT_THAT(list<uint32_t>(out[2]), ElementsAre(4294967295u));
  EXPECT_TRUE(list<bool>(out[3])[0]);
  EXPECT_EQ(out[4].as(DType::kF32).span<float>()[0], 0.333984375f);
  EXPECT_THAT(list<int32_t>(out[5]), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(list<float>(out[6]), ElementsAre(0, 0, 0, 1, 1, 1));
}

TEST(Primitive, Unary) {
  EXPECT_THAT(apply([](Value x) { return -x; }, {1, -2, 0}), ElementsAre(-1, 2, 0));
  EXPECT_THAT(apply(exp, {0, 1, -kInfinity}), ElementsAre(1, 2.718281828459045f, 0));
  EXPECT_THAT(apply(log, {1, 2.7182818f, 0}), ElementsAre(0, FloatNear(1, 1e-7f), -kInfinity));
  EXPECT_THAT(apply(log1p, {0, 1e-10f}), ElementsAre(0, 1e-10f));
  EXPECT_THAT(apply(sqrt, {4, 2}), ElementsAre(2, 1.4142135623730951f));
  EXPECT_THAT(apply(rsqrt, {4, 2}), ElementsAre(0.5, 0.7071067811865476f));
  EXPECT_THAT(apply(tanh, {0, 1, 100}), ElementsAre(0, 0.7615941559557649f, 1));
  EXPECT_THAT(apply(logistic, {0, 1, -200, 200}), ElementsAre(0.5, 0.7310585786300049f, 0, 1));
  EXPECT_THAT(apply(cos, {0, 1}), ElementsAre(1, 0.5403023058681398f));
  EXPECT_THAT(apply(sin, {0, 1}), ElementsAre(0, 0.8414709848078965f));
  EXPECT_THAT(apply(abs, {-1.5, 2}), ElementsAre(1.5, 2));
  EXPECT_THAT(apply(floor, {-1.5, 1.5, 2}), ElementsAre(-2, 1, 2));
  EXPECT_THAT(apply(sign, {-3, 0, 4}), ElementsAre(-1, 0, 1));
  EXPECT_TRUE(std::isnan(apply(sign, {kNan})[0]));
  const Tensor finite = evaluate1({floats({4}, {1, kInfinity, -kInfinity, kNan})},
                                  [](Graph&, const Values& in) { return is_finite(in[0]); });
  EXPECT_THAT(list<bool>(finite), ElementsAre(true, false, false, false));
}

TEST(Primitive, IntegersWrap) {
  const auto unary = [](Value (*f)(Value), const Tensor& x) {
    return evaluate1({x}, [&](Graph&, const Values& in) { return f(in[0]); });
  };
  EXPECT_THAT(list<uint32_t>(unary([](Value x) { return -x; }, words({2}, {1, 0}))),
              ElementsAre(4294967295u, 0u));
  EXPECT_THAT(list<int32_t>(unary(abs, ints({2}, {-5, std::numeric_limits<int32_t>::min()}))),
              ElementsAre(5, std::numeric_limits<int32_t>::min()));
  EXPECT_THAT(list<uint32_t>(unary(logical_not, words({1}, {0xFFFF0000u}))), ElementsAre(0xFFFFu));
  EXPECT_THAT(list<int32_t>(unary(logical_not, ints({1}, {0}))), ElementsAre(-1));
  EXPECT_THAT(list<bool>(unary(logical_not, Tensor::of<bool>({2}, {true, false}))),
              ElementsAre(false, true));

  using U = uint32_t;
  const auto add = [](Value a, Value b) { return a + b; };
  const auto sub = [](Value a, Value b) { return a - b; };
  const auto mul = [](Value a, Value b) { return a * b; };
  const auto div = [](Value a, Value b) { return a / b; };
  EXPECT_THAT(apply<U>(add, {0xFFFFFFFF, 5}, {2, 6}), ElementsAre(1u, 11u));
  EXPECT_THAT(apply<U>(sub, {1, 5}, {2, 3}), ElementsAre(0xFFFFFFFFu, 2u));
  EXPECT_THAT(apply<U>(mul, {0xD2511F53}, {0xCD9E8D57}), ElementsAre(0xD2511F53u * 0xCD9E8D57u));
  EXPECT_THAT(apply<int32_t>(mul, {1 << 30}, {6}),
              ElementsAre(std::numeric_limits<int32_t>::min()));
  EXPECT_THAT(apply<int64_t>(mul, {int64_t{1} << 62}, {4}), ElementsAre(0));
  EXPECT_THAT(apply<int32_t>(div, {-7, 7, 1, std::numeric_limits<int32_t>::min()}, {2, -2, 0, -1}),
              ElementsAre(-3, -3, -1, std::numeric_limits<int32_t>::min()));
  EXPECT_THAT(apply<U>(div, {0xFFFFFFFE, 1}, {2, 0}), ElementsAre(0x7FFFFFFFu, 0xFFFFFFFFu));
}

TEST(Primitive, BinaryOnFloats) {
  EXPECT_THAT(apply<float>([](Value a, Value b) { return a + b; }, {1, 0.1f}, {2, 0.2f}),
              ElementsAre(3, 0.1f + 0.2f));
  EXPECT_THAT(apply<float>([](Value a, Value b) { return a - b; }, {1}, {2}), ElementsAre(-1));
  EXPECT_THAT(apply<float>([](Value a, Value b) { return a * b; }, {3}, {2}), ElementsAre(6));
  EXPECT_THAT(apply<float>([](Value a, Value b) { return a / b; }, {1, 1}, {3, 0}),
              ElementsAre(1.0f / 3, kInfinity));
  EXPECT_THAT(apply<float>(power, {2, 9, 0}, {10, 0.5, 0}), ElementsAre(1024, 3, 1));
  EXPECT_THAT(apply<float>(maximum, {1, 3, kNan, 1}, {2, -1, 1, kNan}),
              ElementsAre(2, 3, IsNan(), IsNan()));
  EXPECT_THAT(apply<float>(minimum, {1, 3, kNan, 1}, {2, -1, 1, kNan}),
              ElementsAre(1, -1, IsNan(), IsNan()));
  EXPECT_THAT(apply<int32_t>(maximum, {1, -3}, {2, -4}), ElementsAre(2, -3));
  EXPECT_THAT(apply<int32_t>(minimum, {1, -3}, {2, -4}), ElementsAre(1, -4));
}

TEST(Primitive, Bits) {
  using U = uint32_t;
  EXPECT_THAT(apply<U>([](Value a, Value b) { return a & b; }, {12}, {10}), ElementsAre(8u));
  EXPECT_THAT(apply<U>([](Value a, Value b) { return a | b; }, {12}, {10}), ElementsAre(14u));
  EXPECT_THAT(apply<U>([](Value a, Value b) { return a ^ b; }, {12}, {10}), ElementsAre(6u));
  EXPECT_THAT(apply<bool>([](Value a, Value b) { return a ^ b; }, {true, true}, {true, false}),
              ElementsAre(false, true));
  const Tensor x = words({2}, {0x80000001u, 3});
  const auto shifted = [&](Value (*f)(Value, int), int bits, const Tensor& of) {
    return evaluate1({of}, [&](Graph&, const Values& in) { return f(in[0], bits); });
  };
  EXPECT_THAT(list<U>(shifted(shift_left, 1, x)), ElementsAre(2u, 6u));
  EXPECT_THAT(list<U>(shifted(shift_right, 1, x)), ElementsAre(0x40000000u, 1u));
  EXPECT_THAT(list<U>(shifted(shift_left, 32, x)), ElementsAre(0u, 0u));
  EXPECT_THAT(list<U>(shifted(shift_right, 40, x)), ElementsAre(0u, 0u));
  EXPECT_THAT(list<int32_t>(shifted(shift_right, 28, ints({1}, {-1}))), ElementsAre(15));
  EXPECT_THAT(list<int32_t>(shifted(shift_left, 31, ints({1}, {1}))),
              ElementsAre(std::numeric_limits<int32_t>::min()));
}

TEST(Primitive, CompareAndSelect) {
  const Tensor a = floats({4}, {1, 2, 3, kNan}), b = floats({4}, {2, 2, 2, kNan});
  const std::vector<Tensor> out = evaluate({a, b}, [](Graph&, const Values& in) {
    const Value a = in[0], b = in[1];
    return Values{equal(a, b),
                  not_equal(a, b),
                  less(a, b),
                  less_equal(a, b),
                  greater(a, b),
                  greater_equal(a, b),
                  select(less(a, b), a, b * 10)};
  });
  EXPECT_THAT(list<bool>(out[0]), ElementsAre(false, true, false, false));
  EXPECT_THAT(list<bool>(out[1]), ElementsAre(true, false, true, true));
  EXPECT_THAT(list<bool>(out[2]), ElementsAre(true, false, false, false));
  EXPECT_THAT(list<bool>(out[3]), ElementsAre(true, true, false, false));
  EXPECT_THAT(list<bool>(out[4]), ElementsAre(false, false, true, false));
  EXPECT_THAT(list<bool>(out[5]), ElementsAre(false, true, true, false));
  EXPECT_THAT(list<float>(out[6]), ElementsAre(1, 20, 20, IsNan()));
  // As unsigned, all bits set is the largest.
  const Tensor words_less = evaluate1({words({1}, {0xFFFFFFFFu}), words({1}, {1})},
                                      [](Graph&, const Values& in) { return less(in[0], in[1]); });
  EXPECT_THAT(list<bool>(words_less), ElementsAre(false));
}

TEST(Primitive, Convert) {
  const std::vector<Tensor> out =
      evaluate({floats({6}, {1.9f, -1.9f, 3e9f, -3e9f, kNan, 300}), ints({3}, {-1, 300, 16777217})},
               [](Graph&, const Values& in) {
                 return Values{convert(in[0], DType::kS32),  convert(in[0], DType::kU8),
                               convert(in[0], DType::kBool), convert(in[1], DType::kU32),
                               convert(in[1], DType::kU8),   convert(in[1], DType::kF32)};
               });
  EXPECT_THAT(list<int32_t>(out[0]), ElementsAre(1, -1, 2147483647, -2147483647 - 1, 0, 300));
  EXPECT_THAT(list<uint8_t>(out[1]), ElementsAre(1, 0, 255, 0, 0, 255));
  EXPECT_THAT(list<bool>(out[2]), ElementsAre(true, true, true, true, true, true));
  EXPECT_THAT(list<uint32_t>(out[3]), ElementsAre(0xFFFFFFFFu, 300u, 16777217u));
  EXPECT_THAT(list<uint8_t>(out[4]), ElementsAre(255, 44, 1));
  EXPECT_THAT(list<float>(out[5]), ElementsAre(-1, 300, 16777216));
}

TEST(Primitive, Shapes) {
  const std::vector<Tensor> out = evaluate({counting({2, 3})}, [](Graph& g, const Values& in) {
    const Value x = in[0];
    const Value strided = g.add1(
        kSlice, {x}, {{"start", Shape{0, 0}}, {"limit", Shape{2, 3}}, {"stride", Shape{2, 2}}});
    const Value padded =
        g.add1(kPad, {x, scalar(g, 9)}, {{"low", Shape{1, 0}}, {"high", Shape{0, 1}}});
    return Values{broadcast_in_dim(x, {2, 2, 3}, {0, 2}),
                  broadcast_to(slice(x, 0, 1, 2), {2, 3}),
                  transpose(x, {1, 0}),
                  reshape(x, {-1, 2}),
                  slice(x, 1, 1, 3),
                  strided,
                  padded,
                  concatenate(Values{x, x * 10}, 1),
                  concatenate(Values{x, x * 10}, 0),
                  with_logical_axes(x, {"activation_batch", ""})};
  });
  EXPECT_THAT(list<float>(out[0]), ElementsAre(0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5));
  EXPECT_THAT(list<float>(out[1]), ElementsAre(3, 4, 5, 3, 4, 5));
  EXPECT_THAT(list<float>(out[2]), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_EQ(out[3].shape(), (Shape{3, 2}));
  EXPECT_THAT(list<float>(out[3]), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(list<float>(out[4]), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(list<float>(out[5]), ElementsAre(0, 2));
  EXPECT_THAT(list<float>(out[6]), ElementsAre(9, 9, 9, 9, 0, 1, 2, 9, 3, 4, 5, 9));
  EXPECT_THAT(list<float>(out[7]), ElementsAre(0, 1, 2, 0, 10, 20, 3, 4, 5, 30, 40, 50));
  EXPECT_THAT(list<float>(out[8]), ElementsAre(0, 1, 2, 3, 4, 5, 0, 10, 20, 30, 40, 50));
  EXPECT_THAT(list<float>(out[9]), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(Primitive, TransposesOfThreeAxes) {
  const Tensor x = counting({2, 3, 4});
  const Tensor y = evaluate1({x}, [](Graph&, const Values& in) {
    return transpose(in[0], {2, 0, 1});
  });
  ASSERT_EQ(y.shape(), (Shape{4, 2, 3}));
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      for (int64_t k = 0; k < 4; ++k) {
        EXPECT_EQ(y.data<float>()[(k * 2 + i) * 3 + j], x.data<float>()[(i * 3 + j) * 4 + k]);
      }
    }
  }
}

TEST(Primitive, WhatChangesNothingAddsNothing) {
  Graph g;
  const Value x = g.input("x", {DType::kF32, {2, 3}});
  EXPECT_EQ(convert(x, DType::kF32), x);
  EXPECT_EQ(reshape(x, {2, -1}), x);
  EXPECT_EQ(transpose(x, {0, 1}), x);
  EXPECT_EQ(broadcast_to(x, {2, 3}), x);
  EXPECT_EQ(slice(x, 0, 0, 2), x);
  EXPECT_EQ(pad(x, 0, 0, 0), x);
  EXPECT_EQ(concatenate(Values{x}, 0), x);
  EXPECT_EQ(reduce_sum(x, {}), x);
  EXPECT_TRUE(g.nodes().empty());
}

TEST(Primitive, DynamicSlices) {
  const auto at = [](int row, int column) {
    return evaluate({counting({3, 3}), floats({2, 1}, {-1, -2})}, [&](Graph& g, const Values& in) {
      const Values starts = {scalar(g, row, DType::kS32), scalar(g, column, DType::kS32)};
      return Values{dynamic_slice(in[0], starts, {2, 1}),
                    dynamic_update_slice(in[0], in[1], starts)};
    });
  };
  EXPECT_THAT(list<float>(at(1, 1)[0]), ElementsAre(4, 7));
  EXPECT_THAT(list<float>(at(1, 1)[1]), ElementsAre(0, 1, 2, 3, -1, 5, 6, -2, 8));
  EXPECT_THAT(list<float>(at(-4, 9)[0]), ElementsAre(2, 5));  // clamped to (0, 2)
  EXPECT_THAT(list<float>(at(2, 0)[1]), ElementsAre(0, 1, 2, -1, 4, 5, -2, 7, 8));
}

TEST(Primitive, Reductions) {
  const std::vector<Tensor> out =
      evaluate({counting({2, 3}), ints({2}, {2147483647, 1}), floats({3}, {1, kNan, 2})},
               [](Graph& g, const Values& in) {
                 return Values{reduce_sum(in[0], {0}),
                               reduce_sum(in[0], {-1}),
                               reduce_sum(in[0], {1, 0}),
                               reduce_max(in[0], {0}),
                               reduce_max(in[0], {1}),
                               reduce_sum(in[1], {0}),
                               reduce_max(in[1], {0}),
                               reduce_max(in[2], {0}),
                               reduce_max(splat(g, 0, {DType::kF32, {2, 0}}), {1})};
               });
  EXPECT_THAT(list<float>(out[0]), ElementsAre(3, 5, 7));
  EXPECT_THAT(list<float>(out[1]), ElementsAre(3, 12));
  EXPECT_THAT(list<float>(out[2]), ElementsAre(15));
  EXPECT_THAT(list<float>(out[3]), ElementsAre(3, 4, 5));
  EXPECT_THAT(list<float>(out[4]), ElementsAre(2, 5));
  EXPECT_THAT(list<int32_t>(out[5]), ElementsAre(-2147483647 - 1));
  EXPECT_THAT(list<int32_t>(out[6]), ElementsAre(2147483647));
  EXPECT_THAT(list<float>(out[7]), ElementsAre(IsNan()));
  EXPECT_THAT(list<float>(out[8]), ElementsAre(-kInfinity, -kInfinity));
}

// dot_general by its definition: for every index of the result and of the contracted axes.
TEST(Primitive, DotGeneralByDefinition) {
  const Tensor a = counting({4, 2, 3, 2}), b = counting({3, 5, 2, 2});
  const Tensor y = evaluate1({a, b}, [](Graph&, const Values& in) {
    return dot_general(
        in[0], in[1],
        {.lhs_contract = {2, 3}, .rhs_contract = {0, 2}, .lhs_batch = {1}, .rhs_batch = {3}});
  });
  ASSERT_EQ(y.shape(), (Shape{2, 4, 5}));
  for (int64_t n = 0; n < 2; ++n) {
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t j = 0; j < 5; ++j) {
        float sum = 0;
        for (int64_t p = 0; p < 3; ++p) {
          for (int64_t q = 0; q < 2; ++q) {
            sum += a.data<float>()[((i * 2 + n) * 3 + p) * 2 + q] *
                   b.data<float>()[((p * 5 + j) * 2 + q) * 2 + n];
          }
        }
        EXPECT_EQ(y.data<float>()[(n * 4 + i) * 5 + j], sum);
      }
    }
  }
}

TEST(Primitive, DotGeneralRoundsOnce) {
  // 256 + 1 needs nine bits: bf16 has eight, so only an accumulator in f32 keeps both ones.
  const Tensor a = floats({1, 3}, {256, 1, 1}).as(DType::kBF16);
  const Tensor b = floats({3, 1}, {1, 1, 1}).as(DType::kBF16);
  const std::vector<Tensor> out = evaluate({a, b}, [](Graph&, const Values& in) {
    const DotDimensions dimensions{.lhs_contract = {1}, .rhs_contract = {0}};
    return Values{dot_general(in[0], in[1], dimensions),
                  dot_general(in[0], in[1], dimensions, DType::kF32)};
  });
  EXPECT_EQ(out[0].dtype(), DType::kBF16);
  EXPECT_EQ(out[0].as(DType::kF32).span<float>()[0], 258);
  EXPECT_EQ(out[1].span<float>()[0], 258);
}

TEST(Primitive, GatherAndScatterAdd) {
  const std::vector<Tensor> out =
      evaluate({counting({3, 2}), ints({2, 2}, {0, 2, -1, 7}), ints({3}, {2, 2, 3}),
                floats({3, 2}, {10, 20, 100, 200, 1000, 2000}), ints({3}, {5, 6, 7})},
               [](Graph&, const Values& in) {
                 return Values{gather(in[0], in[1]), scatter_add(in[0], in[2], in[3]),
                               gather(in[4], slice(in[2], 0, 0, 1))};
               });
  EXPECT_EQ(out[0].shape(), (Shape{2, 2, 2}));
  EXPECT_THAT(list<float>(out[0]), ElementsAre(0, 1, 4, 5, 0, 1, 4, 5));  // clamped
  EXPECT_THAT(list<float>(out[1]), ElementsAre(0, 1, 2, 3, 114, 225));    // row 3 is dropped
  EXPECT_THAT(list<int32_t>(out[2]), ElementsAre(7));
}

TEST(Primitive, TopK) {
  const std::vector<Tensor> out =
      evaluate({floats({2, 4}, {1, 3, 3, 2, kNan, 5, -kInfinity, kNan})},
               [](Graph&, const Values& in) { return top_k(in[0], 3); });
  EXPECT_THAT(list<float>(out[0]), ElementsAre(3, 3, 2, IsNan(), IsNan(), 5));
  EXPECT_THAT(list<int32_t>(out[1]), ElementsAre(1, 2, 3, 0, 3, 1));
}

TEST(Primitive, ScalarsStretch) {
  const std::vector<Tensor> out =
      evaluate({counting({2, 2}), floats({}, {10})}, [](Graph&, const Values& in) {
        return Values{in[0] + in[1], in[1] - in[0], 2 * in[0] - 1, 6 / (in[0] + 1),
                      select(greater(in[0], in[1] - 8), in[1], in[0])};
      });
  EXPECT_THAT(list<float>(out[0]), ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(list<float>(out[1]), ElementsAre(10, 9, 8, 7));
  EXPECT_THAT(list<float>(out[2]), ElementsAre(-1, 1, 3, 5));
  EXPECT_THAT(list<float>(out[3]), ElementsAre(6, 3, 2, 1.5));
  EXPECT_THAT(list<float>(out[4]), ElementsAre(0, 1, 2, 10));
}

// Errors name the operation and every shape.
class Refusal : public ::testing::Test {
 protected:
  Graph g;
  Value a = g.input("a", {DType::kF32, {2, 3}});
  Value b = g.input("b", {DType::kF32, {3, 4}});
  Value i = g.input("i", {DType::kS32, {5}});
  Value n = g.input("n", {DType::kS32, {}});

  template <typename F>
  std::string message(F f) {
    try {
      f();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was refused";
  }
};

TEST_F(Refusal, Elementwise) {
  EXPECT_EQ(message([&] { a + b; }),
            "add: operands must be of one type, not f32[2, 3] and f32[3, 4]");
  EXPECT_EQ(message([&] { maximum(a, convert(a, DType::kBF16)); }),
            "max: operands must be of one type, not f32[2, 3] and bf16[2, 3]");
  EXPECT_EQ(message([&] { exp(i); }), "exp: operand 0 must be of float elements, not s32[5]");
  EXPECT_EQ(message([&] { logical_not(a); }),
            "not: operand 0 must be of integer or bool elements, not f32[2, 3]");
  EXPECT_EQ(message([&] {
              abs(g.input("u", {DType::kU32, {1}}));
            }),
            "abs: operand 0 must be of float or signed integer elements, not u32[1]");
  EXPECT_EQ(message([&] { g.add1(kAdd, {a}); }), "add: takes 2 operands, not f32[2, 3]");
  EXPECT_EQ(message([&] { less(a, b); }),
            "compare: operands must be of one type, not f32[2, 3] and f32[3, 4]");
  EXPECT_THAT(message([&] {
                g.add1(kCompare, {a, a}, {{"direction", "GTE"}});
              }),
              HasSubstr("direction \"GTE\""));
  EXPECT_EQ(message([&] { select(less(a, a), b, b); }),
            "select: operands must be of one shape, not bool[2, 3], f32[3, 4] and f32[3, 4]");
  EXPECT_THAT(message([&] { g.add1(kSelect, {a, a, a}); }), HasSubstr("operand 0 must be of bool"));
  EXPECT_THAT(message([&] {
                g.add1(kAdd, {less(a, a), less(a, a)});
              }),
              HasSubstr("float or integer elements, not bool[2, 3] and bool[2, 3]"));
}

TEST_F(Refusal, Shapes) {
  EXPECT_EQ(message([&] { reshape(a, {4}); }),
            "reshape: [4] must have as many elements as the operand, not f32[2, 3]");
  EXPECT_EQ(message([&] {
              reshape(a, {4, -1});
            }),
            "reshape: f32[2, 3] does not divide into [4, -1]");
  EXPECT_EQ(message([&] {
              broadcast_to(a, {2, 4});
            }),
            "broadcast_in_dim: axis 1 must be 1 or 4 to become axis 1 of [2, 4], not f32[2, 3]");
  EXPECT_EQ(
      message([&] { broadcast_to(a, {3}); }),
      "broadcast_in_dim: dims [-1, 0] must name one axis of [3] for each of the operand's, not "
      "f32[2, 3]");
  EXPECT_THAT(message([&] { broadcast_in_dim(a, {3, 2, 1}, {1, 0}); }), HasSubstr("must ascend"));
  EXPECT_EQ(message([&] {
              transpose(a, {0, 0});
            }),
            "transpose: axis 0 must occur once, not f32[2, 3]");
  EXPECT_THAT(message([&] { transpose(a, {0}); }), HasSubstr("must name every axis"));
  EXPECT_EQ(message([&] { slice(a, 1, 2, 4); }),
            "slice: start 2, limit 4, stride 1 must lie within axis 1, not f32[2, 3]");
  EXPECT_THAT(message([&] { slice(a, 2, 0, 1); }), HasSubstr("axis 2 does not exist in f32[2, 3]"));
  EXPECT_THAT(message([&] { pad(a, 0, -1, 0); }), HasSubstr("must not be negative"));
  EXPECT_EQ(message([&] {
              concatenate(Values{a, b}, 0);
            }),
            "concatenate: operands must agree but for axis 0, not f32[2, 3] and f32[3, 4]");
  EXPECT_EQ(message([&] {
              dynamic_slice(a, Values{n}, {1, 1});
            }),
            "dynamic_slice: takes 3 operands, not f32[2, 3] and s32[]");
  EXPECT_THAT(message([&] {
                dynamic_slice(a, Values{n, n}, {3, 1});
              }),
              HasSubstr("sizes [3, 1] must fit into operand 0, not f32[2, 3]"));
  EXPECT_THAT(message([&] {
                dynamic_update_slice(a, b, Values{n, n});
              }),
              HasSubstr("operand 1 must fit into operand 0, not f32[2, 3], f32[3, 4]"));
  EXPECT_THAT(message([&] { reduce_sum(a, {2}); }), HasSubstr("axis 2 must lie in [0, 2)"));
  EXPECT_THAT(message([&] {
                iota(g, {DType::kS32, {2}}, 1);
              }),
              HasSubstr("axis 1 does not exist in"));
}

TEST_F(Refusal, ContractionAndIndices) {
  EXPECT_EQ(
      message([&] { dot_general(a, b, {.lhs_contract = {0}, .rhs_contract = {0}}); }),
      "dot_general: contracted axes 0 and 0 must be of one extent, not f32[2, 3] and f32[3, 4]");
  EXPECT_THAT(message([&] {
                dot_general(a, b, {.lhs_contract = {0, 1}, .rhs_contract = {0}});
              }),
              HasSubstr("must pair up, not f32[2, 3] and f32[3, 4]"));
  EXPECT_THAT(message([&] {
                dot_general(
                    a, b,
                    {.lhs_contract = {1}, .rhs_contract = {0}, .lhs_batch = {1}, .rhs_batch = {1}});
              }),
              HasSubstr("axis 1 must occur once"));
  EXPECT_THAT(message([&] { dot_general(i, i, {.lhs_contract = {0}, .rhs_contract = {0}}); }),
              HasSubstr("operand 0 must be of float elements"));
  EXPECT_THAT(message([&] {
                dot_general(a, convert(b, DType::kBF16),
                            {.lhs_contract = {1}, .rhs_contract = {0}});
              }),
              HasSubstr("one element type, not f32[2, 3] and bf16[3, 4]"));
  EXPECT_EQ(message([&] { gather(a, a); }),
            "gather: operand 1 must be s32 indices, not f32[2, 3] and f32[2, 3]");
  EXPECT_EQ(
      message([&] { scatter_add(a, i, b); }),
      "scatter_add: operand 2 must hold a row of operand 0 for each index, not f32[2, 3], s32[5] "
      "and f32[3, 4]");
  EXPECT_EQ(message([&] { top_k(a, 4); }),
            "top_k: k = 4 must lie within the last axis, not f32[2, 3]");
}

TEST_F(Refusal, Case) {
  const auto body = [](const Shape& in, const Shape& out) {
    auto graph = std::make_shared<Graph>();
    graph->input("x", {DType::kF32, in});
    graph->output("y", splat(*graph, 1, {DType::kF32, out}));
    return std::shared_ptr<const Graph>(graph);
  };
  EXPECT_EQ(message([&] {
              case_of(n, Values{a}, {body({2, 3}, {1}), body({2}, {1})});
            }),
            "case: body 1 takes (f32[2]), not s32[] and f32[2, 3]");
  EXPECT_EQ(message([&] {
              case_of(n, Values{a}, {body({2, 3}, {1}), body({2, 3}, {2})});
            }),
            "case: body 1 gives (f32[2]) where body 0 gives (f32[1]), not s32[] and f32[2, 3]");
  EXPECT_THAT(message([&] {
                case_of(i, Values{a}, {body({2, 3}, {1})});
              }),
              HasSubstr("s32 scalar"));
  EXPECT_THAT(message([&] { case_of(n, Values{a}, {}); }), HasSubstr("at least one body"));
}

}  // namespace
}  // namespace graft
