// Every primitive's gradient against finite differences, over several shapes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "ir/logical_axes.h"
#include "ir/primitives.h"
#include "ir/scan.h"
#include "support/gradient_check.h"

namespace graft {
namespace {

using testing::check_gradients;
using testing::CheckedInput;
using Values = std::vector<Value>;

const std::vector<Shape> kShapes = {{}, {5}, {2, 3}, {2, 1, 3}};

void check_unary(Value (*f)(Value), double low, double high) {
  for (const Shape& shape : kShapes) {
    check_gradients({{.type = {DType::kF32, shape}, .low = low, .high = high}},
                    [&](Graph&, const Values& in) { return Values{f(in[0])}; });
  }
}

void check_binary(const std::function<Value(Value, Value)>& f, double low = -1, double high = 1) {
  for (const Shape& shape : kShapes) {
    const CheckedInput input{.type = {DType::kF32, shape}, .low = low, .high = high};
    check_gradients({input, input},
                    [&](Graph&, const Values& in) { return Values{f(in[0], in[1])}; });
  }
}

// One array input of this shape.
void check_shape_op(const Shape& shape, const std::function<Value(Value)>& f) {
  check_gradients({{.type = {DType::kF32, shape}}},
                  [&](Graph&, const Values& in) { return Values{f(in[0])}; });
}

Value integers(Graph& graph, const Shape& shape, const std::vector<int32_t>& values) {
  return literal(graph, Tensor::of<int32_t>(shape, values));
}

TEST(PrimitiveGradient, Unary) {
  check_unary([](Value x) { return -x; }, -1, 1);
  check_unary(exp, -1, 1);
  check_unary(log, 0.5, 2);
  check_unary(log1p, -0.5, 2);
  check_unary(sqrt, 0.5, 2);
  check_unary(rsqrt, 0.5, 2);
  check_unary(tanh, -2, 2);
  check_unary(logistic, -3, 3);
  check_unary(cos, -3, 3);
  check_unary(sin, -3, 3);
  check_unary(abs, 0.1, 1);
  check_unary(abs, -1, -0.1);
  check_unary(floor, 0.1, 0.9);
  check_unary(sign, 0.1, 1);
  check_unary([](Value x) { return convert(convert(x, DType::kBF16), DType::kF32); }, -1, 1);
}

TEST(PrimitiveGradient, Binary) {
  check_binary([](Value a, Value b) { return a + b; });
  check_binary([](Value a, Value b) { return a - b; });
  check_binary([](Value a, Value b) { return a * b; });
  check_binary([](Value a, Value b) { return a / b; }, 0.5, 2);
  check_binary([](Value a, Value b) { return power(a, b); }, 0.5, 2);
  check_binary(maximum);
  check_binary(minimum);
  check_binary([](Value a, Value b) { return a * a + b * 2 - (3 - a) / 4; });
}

TEST(PrimitiveGradient, PowerAtZero) {
  Graph g;
  const Value a = g.input("a", {DType::kF32, {4}}), b = g.input("b", {DType::kF32, {4}});
  const Values both = {a, b};
  for (Value d : gradients(reduce_sum(power(a, b), {0}), both)) g.output("d", d);
  const std::vector<Tensor> out =
      interpret(g, {{Tensor::of<float>({4}, {0, 0, -2, 0}), Tensor::of<float>({4}, {2, 0, 2, 1})}});
  EXPECT_THAT(out[0].span<float>(), ::testing::ElementsAre(0, 0, -4, 1));
  EXPECT_EQ(out[1].span<float>()[0], 0);
  EXPECT_EQ(out[1].span<float>()[3], 0);
}

TEST(PrimitiveGradient, EqualOperandsOfAnExtremumShare) {
  Graph g;
  const Value a = g.input("a", {DType::kF32, {3}}), b = g.input("b", {DType::kF32, {3}});
  const Values both = {a, b};
  for (Value d : gradients(reduce_sum(maximum(a, b), {0}), both)) g.output("d", d);
  for (Value d : gradients(reduce_sum(minimum(a, b), {0}), both)) g.output("d", d);
  const Value peak = reduce_max(concatenate(both, 0), {0});
  for (Value d : gradients(peak, both)) g.output("d", d);
  const std::vector<Tensor> out =
      interpret(g, {{Tensor::of<float>({3}, {1, 2, 3}), Tensor::of<float>({3}, {2, 2, 3})}});
  EXPECT_THAT(out[0].span<float>(), ::testing::ElementsAre(0, 0.5, 0.5));
  EXPECT_THAT(out[1].span<float>(), ::testing::ElementsAre(1, 0.5, 0.5));
  EXPECT_THAT(out[2].span<float>(), ::testing::ElementsAre(1, 0.5, 0.5));
  EXPECT_THAT(out[3].span<float>(), ::testing::ElementsAre(0, 0.5, 0.5));
  EXPECT_THAT(out[4].span<float>(), ::testing::ElementsAre(0, 0, 0.5));
  EXPECT_THAT(out[5].span<float>(), ::testing::ElementsAre(0, 0, 0.5));
}

TEST(PrimitiveGradient, Select) {
  check_binary([](Value a, Value b) { return select(less(a, b), a * a, b * 3); });
  check_gradients(
      {{.type = {DType::kF32, {4}}}, {.type = {DType::kF32, {}}}},
      [](Graph&, const Values& in) { return Values{select(greater(in[0], in[1]), in[0], in[1])}; });
}

TEST(PrimitiveGradient, BroadcastAndScalars) {
  check_shape_op({3}, [](Value x) { return broadcast_in_dim(x, {2, 3}, {1}); });
  check_shape_op({3}, [](Value x) { return broadcast_in_dim(x, {3, 2}, {0}); });
  check_shape_op({}, [](Value x) { return broadcast_in_dim(x, {3, 2}, {}); });
  check_shape_op({2, 1, 3}, [](Value x) { return broadcast_to(x, {5, 2, 4, 3}); });
  check_shape_op({1, 1}, [](Value x) { return broadcast_to(x, {2, 3}); });
  check_gradients(
      {{.type = {DType::kF32, {}}, .low = 0.5}, {.type = {DType::kF32, {2, 3}}, .low = 0.5}},
      [](Graph&, const Values& in) {
        return Values{in[0] * in[1], in[1] / in[0], in[0] - in[1]};
      });
}

TEST(PrimitiveGradient, ReshapeAndTranspose) {
  check_shape_op({2, 6}, [](Value x) { return reshape(x, {3, -1}); });
  check_shape_op({1}, [](Value x) { return reshape(x, {}); });
  check_shape_op({2, 3}, [](Value x) { return with_logical_axes(x, {"activation_batch", ""}); });
  check_shape_op({2, 3, 4}, [](Value x) { return transpose(x, {2, 0, 1}); });
  check_shape_op({2, 3}, [](Value x) { return transpose(x, {1, 0}); });
}

TEST(PrimitiveGradient, Slice) {
  check_shape_op({5, 3}, [](Value x) { return slice(x, 0, 1, 4); });
  check_shape_op({5, 3}, [](Value x) { return slice(x, -1, 2, 3); });
  const auto strided = [](std::vector<int64_t> start, std::vector<int64_t> limit,
                          std::vector<int64_t> stride) {
    return [=](Value x) {
      return x.graph().add1(kSlice, {x}, {{"start", start}, {"limit", limit}, {"stride", stride}});
    };
  };
  check_shape_op({7}, strided({0}, {7}, {2}));
  check_shape_op({7}, strided({1}, {6}, {3}));
  check_shape_op({7, 4}, strided({1, 1}, {7, 4}, {2, 2}));
  check_shape_op({4, 6, 2}, strided({0, 1, 0}, {4, 6, 2}, {3, 2, 1}));
  check_shape_op({5}, strided({2}, {2}, {2}));
}

TEST(PrimitiveGradient, Pad) {
  check_shape_op({2, 3}, [](Value x) { return pad(x, 1, 1, 2); });
  check_gradients(
      {{.type = {DType::kF32, {2, 2}}}, {.type = {DType::kF32, {}}}},
      [](Graph& g, const Values& in) {
        return Values{g.add1(kPad, {in[0], in[1]}, {{"low", Shape{1, 0}}, {"high", Shape{0, 2}}})};
      });
}

TEST(PrimitiveGradient, Concatenate) {
  for (int axis : {0, 1, -1}) {
    Shape a = {2, 3}, b = {2, 3};
    a[axis == 0 ? 0 : 1] = 1;
    check_gradients({{.type = {DType::kF32, a}}, {.type = {DType::kF32, b}}},
                    [&](Graph&, const Values& in) {
                      return Values{concatenate(Values{in[0], in[1], in[0]}, axis)};
                    });
  }
}

TEST(PrimitiveGradient, DynamicSlices) {
  for (int start : {-1, 0, 1, 2, 9}) {  // both ends clamped
    check_shape_op({4, 3}, [&](Value x) {
      const Values starts = {scalar(x.graph(), start, DType::kS32),
                             scalar(x.graph(), 1, DType::kS32)};
      return dynamic_slice(x, starts, {2, 2});
    });
    check_gradients(
        {{.type = {DType::kF32, {4, 3}}}, {.type = {DType::kF32, {2, 2}}}},
        [&](Graph& g, const Values& in) {
          const Values starts = {scalar(g, start, DType::kS32), scalar(g, 0, DType::kS32)};
          return Values{dynamic_update_slice(in[0], in[1], starts)};
        });
  }
}

TEST(PrimitiveGradient, Reductions) {
  const std::vector<std::vector<int64_t>> axes = {{0}, {1}, {2}, {0, 2}, {0, 1, 2}, {-1}};
  for (const auto& each : axes) {
    check_shape_op({2, 3, 4}, [&](Value x) { return reduce_sum(x, each); });
    check_shape_op({2, 3, 4}, [&](Value x) { return reduce_max(x, each); });
  }
  check_shape_op({2, 3}, [](Value x) { return reduce_sum(x * x, {}); });
}

struct DotCase {
  Shape lhs, rhs;
  DotDimensions dimensions;
};

TEST(PrimitiveGradient, DotGeneral) {
  const std::vector<DotCase> cases = {
      {{2, 3}, {3, 4}, {.lhs_contract = {1}, .rhs_contract = {0}}},
      {{2, 3}, {4, 3}, {.lhs_contract = {1}, .rhs_contract = {1}}},
      {{3, 2}, {3, 4}, {.lhs_contract = {0}, .rhs_contract = {0}}},
      {{3, 2}, {4, 3}, {.lhs_contract = {0}, .rhs_contract = {1}}},
      {{3}, {3}, {.lhs_contract = {0}, .rhs_contract = {0}}},
      {{2}, {3}, {.lhs_contract = {}, .rhs_contract = {}}},
      {{2, 5, 3}, {4, 3}, {.lhs_contract = {2}, .rhs_contract = {1}}},
      {{2, 4, 3},
       {2, 3, 5},
       {.lhs_contract = {2}, .rhs_contract = {1}, .lhs_batch = {0}, .rhs_batch = {0}}},
      {{4, 2, 3},
       {3, 5, 2},
       {.lhs_contract = {2}, .rhs_contract = {0}, .lhs_batch = {1}, .rhs_batch = {2}}},
      {{2, 3, 4, 5},
       {5, 2, 4, 3},
       {.lhs_contract = {3, 1}, .rhs_contract = {0, 3}, .lhs_batch = {0}, .rhs_batch = {1}}},
      {{2, 3, 4},
       {4, 3, 2},
       {.lhs_contract = {1}, .rhs_contract = {1}, .lhs_batch = {2, 0}, .rhs_batch = {0, 2}}},
      {{2, 3, 2, 4},
       {3, 2, 2, 5},
       {.lhs_contract = {0, 2}, .rhs_contract = {2, 1}, .lhs_batch = {1}, .rhs_batch = {0}}},
      {{2, 3},
       {2, 3},
       {.lhs_contract = {}, .rhs_contract = {}, .lhs_batch = {0, 1}, .rhs_batch = {0, 1}}},
  };
  for (const DotCase& each : cases) {
    check_gradients({{.type = {DType::kF32, each.lhs}}, {.type = {DType::kF32, each.rhs}}},
                    [&](Graph&, const Values& in) {
                      return Values{dot_general(in[0], in[1], each.dimensions)};
                    });
  }
}

TEST(PrimitiveGradient, DotGeneralOfMixedTypes) {
  const DotDimensions dimensions{.lhs_contract = {1}, .rhs_contract = {1}};
  for (DType result : {DType::kF32, DType::kBF16}) {
    check_gradients({{.type = {DType::kBF16, {2, 3}}}, {.type = {DType::kBF16, {4, 3}}}},
                    [&](Graph&, const Values& in) {
                      return Values{dot_general(in[0], in[1], dimensions, result)};
                    });
  }
}

TEST(PrimitiveGradient, GatherAndScatterAdd) {
  check_shape_op({4, 2}, [](Value x) {
    return gather(x, integers(x.graph(), {2, 3}, {0, 3, 3, -5, 1, 9}));  // clamped at both ends
  });
  check_shape_op({4}, [](Value x) { return gather(x, scalar(x.graph(), 2, DType::kS32)); });
  check_gradients({{.type = {DType::kF32, {3, 2}}}, {.type = {DType::kF32, {5, 2}}}},
                  [](Graph& g, const Values& in) {
                    return Values{scatter_add(in[0], integers(g, {5}, {2, 0, 2, -1, 3}), in[1])};
                  });
}

TEST(PrimitiveGradient, TopK) {
  for (int64_t k : {1, 2, 4}) {
    check_shape_op({3, 4}, [&](Value x) { return top_k(x, k)[0]; });
    check_shape_op({4}, [&](Value x) { return top_k(x, k)[0]; });
  }
}

std::shared_ptr<const Graph> body_of(const std::function<Values(const Values&)>& f) {
  auto body = std::make_shared<Graph>();
  const Values in = {body->input("x", {DType::kF32, {3}}), body->input("y", {DType::kF32, {3}}),
                     body->input("i", {DType::kS32, {}})};
  for (Value v : f(in)) body->output("out", v);
  return body;
}

TEST(PrimitiveGradient, Case) {
  const std::vector<std::shared_ptr<const Graph>> bodies = {
      body_of([](const Values& in) {
        return Values{in[0] * in[1], in[0]};
      }),
      body_of([](const Values& in) {
        return Values{in[1], exp(in[1])};
      }),
      body_of([](const Values& in) {
        return Values{zeros_like(in[0]), sin(in[0]) / 2};
      })};
  for (int index : {-3, 0, 1, 2, 7}) {
    check_gradients({{.type = {DType::kF32, {3}}}, {.type = {DType::kF32, {3}}}},
                    [&](Graph& g, const Values& in) {
                      const Value which = scalar(g, index, DType::kS32);
                      const Values results = case_of(which, Values{in[0], in[1], which}, bodies);
                      return Values{results[0], results[1]};
                    });
    check_gradients({{.type = {DType::kF32, {3}}}, {.type = {DType::kF32, {3}}}},
                    [&](Graph& g, const Values& in) {
                      const Value which = scalar(g, index, DType::kS32);
                      return Values{case_of(which, Values{in[0], in[1], which}, bodies)[1]};
                    });
  }
}

TEST(PrimitiveGradient, CotangentsInF32OfLowPrecisionValues) {
  // w is used by an operation whose gradient comes in f32 whatever w's type, beyond a primitive.
  static constexpr auto infer = [](const Call& call) -> std::vector<Type> {
    return {{DType::kF32, call.operands[0].shape}};
  };
  static constexpr auto gradient = [](GradientContext& c) { c.set(0, c.cotangent(0) * 2); };
  static constexpr auto decomposed = [](Graph&, std::span<const Value> in, const Call&) -> Values {
    return {convert(in[0], DType::kF32) * 2};
  };
  static const Op twice{
      .name = "twice", .infer = infer, .gradient = gradient, .decompose = decomposed};
  const std::vector<std::function<Value(Value)>> before = {
      [](Value x) { return x * x; },
      [](Value x) { return reshape(x, {6}); },
      [](Value x) {
        return transpose(x, {1, 0});
      },
      [](Value x) { return slice(x, 0, 0, 1); },
      [](Value x) { return pad(x, 1, 1, 1); },
      [](Value x) { return reduce_sum(x, {0}); },
      [](Value x) { return reduce_max(x, {1}); },
      [](Value x) {
        return broadcast_to(x, {2, 2, 3});
      },
      [](Value x) {
        return concatenate(Values{x, x}, 0);
      },
      [](Value x) { return top_k(x, 2)[0]; },
      [](Value x) { return dot_general(x, x, {.lhs_contract = {1}, .rhs_contract = {1}}); },
      [](Value x) { return gather(x, scalar(x.graph(), 1, DType::kS32)); },
      [](Value x) { return select(greater(x, zeros_like(x)), x, x * 2); },
      [](Value x) {
        const Value zero = scalar(x.graph(), 0, DType::kS32);
        return dynamic_slice(x, Values{zero, zero}, {1, 1});
      },
  };
  for (const auto& f : before) {
    check_gradients({{.type = {DType::kBF16, {2, 3}}}},
                    [&](Graph& g, const Values& in) { return Values{g.add1(twice, {f(in[0])})}; });
  }
}

TEST(PrimitiveGradient, InsideScans) {
  for (const bool reverse : {false, true}) {
    for (const Remat remat : {Remat::kNone, Remat::kMinimal, Remat::kFull}) {
      check_gradients({{.type = {DType::kF32, {3}}},
                       {.type = {DType::kF32, {3, 3}}},
                       {.type = {DType::kF32, {4, 3}}}},
                      [&](Graph& g, const Values& in) {
                        const ScanResults results = scan(
                            g, 4, {.carries = {in[0]}, .invariants = {in[1]}, .stacked = {in[2]}},
                            [](ScanBody& body) {
                              const Value h =
                                  dot_general(body.carry(0), body.invariant(0),
                                              {.lhs_contract = {0}, .rhs_contract = {0}});
                              body.carry_out(0, tanh(h + body.stacked(0)));
                              body.stacked_out(exp(h) * body.carry(0));
                            },
                            reverse);
                        return Values{results.carries[0], results.stacked[0]};
                      },
                      {.autodiff = {.remat = remat}});
    }
  }
}

// The primitives without a gradient are exactly those of integers and bools, and constants.
TEST(PrimitiveGradient, WhatHasNone) {
  std::set<std::string> none;
  for (const Op* op : primitives()) {
    if (op->gradient == nullptr) none.emplace(op->name);
  }
  EXPECT_EQ(none, (std::set<std::string>{"and", "compare", "constant", "iota", "is_finite", "not",
                                         "or", "shift_left", "shift_right", "splat", "xor"}));
}

}  // namespace
}  // namespace graft
