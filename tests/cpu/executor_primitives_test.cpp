// Every primitive on the native executor against the interpreter, over shapes and element types.

#include <functional>

#include "cpu/executor_harness.h"
#include "ir/logical_axes.h"
#include "ir/primitives.h"

namespace graft::cpu {
namespace {

using testing::expect_executes;
using testing::random_floats;
using testing::random_integers;

using Build = std::function<std::vector<Value>(Graph&, const std::vector<Value>&)>;

void check(const std::vector<Tensor>& inputs, const Build& build, double tolerance = -1) {
  Graph graph;
  std::vector<Value> values;
  for (const Tensor& input : inputs) {
    values.push_back(
        graph.input("in" + std::to_string(values.size()), {input.dtype(), input.shape()}));
  }
  for (Value v : build(graph, values)) graph.output("out", v);
  expect_executes(graph, inputs, tolerance);
}

const std::vector<DType> kFloatTypes = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
const std::vector<DType> kIntegerTypes = {DType::kS32, DType::kS64, DType::kU32, DType::kU8,
                                          DType::kS8};
const std::vector<Shape> kShapes = {{}, {1}, {7}, {3, 5}, {2, 3, 4}, {0, 3}, {5, 20000}};

Tensor with_specials(Tensor x) {
  const double specials[] = {std::nan(""), INFINITY, -INFINITY, 0.0, -0.0};
  Tensor wide = x.as(DType::kF64).clone();
  for (int64_t i = 0; i < std::min<int64_t>(5, wide.elements() - 1); ++i) {
    wide.data<double>()[i] = specials[i];
  }
  return wide.as(x.dtype());
}

TEST(ExecutorPrimitives, UnaryFloats) {
  for (DType dtype : kFloatTypes) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + to_string(shape));
      const Tensor x = with_specials(random_floats(shape, 1, dtype, -3, 3));
      const Tensor positive = random_floats(shape, 2, dtype, 0.1, 4);
      check({x, positive}, [](Graph&, const std::vector<Value>& in) {
        const Value x = in[0], p = in[1];
        return std::vector<Value>{-x,       exp(x),   tanh(x), logistic(x),  abs(x),
                                  floor(x), sign(x),  cos(p),  is_finite(x), sin(p),
                                  log(p),   log1p(p), sqrt(p), rsqrt(p)};
      });
    }
  }
}

TEST(ExecutorPrimitives, BinaryFloats) {
  for (DType dtype : kFloatTypes) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + to_string(shape));
      const Tensor a = with_specials(random_floats(shape, 3, dtype, -3, 3));
      const Tensor b = random_floats(shape, 4, dtype, 0.5, 3);
      check({a, b}, [](Graph&, const std::vector<Value>& in) {
        const Value a = in[0], b = in[1];
        return std::vector<Value>{a + b,
                                  a - b,
                                  a * b,
                                  a / b,
                                  maximum(a, b),
                                  minimum(b, a),
                                  power(b, b),
                                  a + 2.5,
                                  1.5 - b,
                                  a * 0.1,
                                  equal(a, b),
                                  not_equal(a, b),
                                  less(a, b),
                                  less_equal(a, b),
                                  greater(a, b),
                                  greater_equal(b, a),
                                  select(less(a, b), a, b)};
      });
    }
  }
}

TEST(ExecutorPrimitives, Integers) {
  for (DType dtype : kIntegerTypes) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + to_string(shape));
      const bool is_unsigned = dtype == DType::kU8 || dtype == DType::kU32;
      const Tensor a = random_integers(shape, 5, dtype, is_unsigned ? 0 : -120, 120);
      const Tensor b = random_integers(shape, 6, dtype, is_unsigned ? 0 : -3, 9);
      check({a, b}, [&](Graph&, const std::vector<Value>& in) {
        const Value a = in[0], b = in[1];
        std::vector<Value> results = {a + b,
                                      a - b,
                                      a * b,
                                      a / b,
                                      maximum(a, b),
                                      minimum(a, b),
                                      a & b,
                                      a | b,
                                      a ^ b,
                                      logical_not(a),
                                      shift_left(a, 3),
                                      shift_right(a, 2),
                                      less(a, b),
                                      equal(a, b),
                                      a.graph().add1(kShiftLeft, {a, b}),
                                      a.graph().add1(kShiftRight, {a, b})};
        if (!is_unsigned) results.insert(results.end(), {-a, abs(a), sign(a)});
        return results;
      });
    }
  }
}

TEST(ExecutorPrimitives, SignedExtremes) {
  const Tensor a = Tensor::of<int32_t>({4}, {INT32_MIN, INT32_MAX, INT32_MIN, 7});
  const Tensor b = Tensor::of<int32_t>({4}, {-1, 2, 0, 0});
  check({a, b}, [](Graph&, const std::vector<Value>& in) {
    return std::vector<Value>{in[0] / in[1], in[0] * in[1], in[0] + in[0], -in[0], abs(in[0])};
  });
}

TEST(ExecutorPrimitives, Bools) {
  const Tensor a = random_integers({50}, 7, DType::kBool, 0, 2),
               b = random_integers({50}, 8, DType::kBool, 0, 2);
  check({a, b}, [](Graph&, const std::vector<Value>& in) {
    return std::vector<Value>{in[0] & in[1],      in[0] | in[1],       in[0] ^ in[1],
                              logical_not(in[0]), equal(in[0], in[1]), select(in[0], in[1], in[0])};
  });
}

TEST(ExecutorPrimitives, Conversions) {
  std::vector<DType> types = kFloatTypes;
  types.insert(types.end(), kIntegerTypes.begin(), kIntegerTypes.end());
  types.insert(types.end(), {DType::kBool, DType::kF8E4M3FN, DType::kF8E5M2});
  for (DType from : types) {
    const Tensor x =
        random_floats({3, 50}, 9, DType::kF32, is_float(from) ? -300 : 0, 300).as(from);
    check(
        {x},
        [&](Graph& graph, const std::vector<Value>& in) {
          std::vector<Value> results;
          for (DType to : types) {
            results.push_back(convert(in[0], to));
            if (from == DType::kF32) results.push_back(convert(splat(graph, 3, {from, {5}}), to));
          }
          return results;
        },
        0);
  }
}

TEST(ExecutorPrimitives, Constants) {
  for (DType dtype :
       {DType::kF32, DType::kBF16, DType::kS32, DType::kU8, DType::kS64, DType::kF64}) {
    check({}, [&](Graph& graph, const std::vector<Value>&) {
      return std::vector<Value>{
          splat(graph, 3.25, {dtype, {4, 5}}), splat(graph, 2, {dtype, {}}),
          splat(graph, 1, {dtype, {0}}),       iota(graph, {dtype, {3, 40, 2}}, 1),
          iota(graph, {dtype, {50}}, 0),       literal(graph, random_floats({3, 3}, 10).as(dtype)),
          iota(graph, {dtype, {200, 300}}, 0)};
    });
  }
  check({}, [](Graph& graph, const std::vector<Value>&) {
    return std::vector<Value>{splat(graph, 1, {DType::kBool, {6}})};
  });
}

TEST(ExecutorPrimitives, MovingElements) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kU8, DType::kF64}) {
    const Tensor x = random_integers({4, 6, 5}, 11, DType::kS32, 0, 100).as(dtype);
    const Tensor big = random_integers({3, 70, 130}, 12, DType::kS32, 0, 100).as(dtype);
    check({x, big}, [&](Graph& graph, const std::vector<Value>& in) {
      const Value x = in[0], big = in[1];
      const Value every_other = graph.add1(kSlice, {x},
                                           {{"start", std::vector<int64_t>{1, 0, 1}},
                                            {"limit", std::vector<int64_t>{4, 6, 5}},
                                            {"stride", std::vector<int64_t>{2, 1, 3}}});
      return std::vector<Value>{
          reshape(x, {24, 5}),
          transpose(x, {2, 0, 1}),
          transpose(x, {0, 2, 1}),
          transpose(x, {2, 1, 0}),
          transpose(big, {2, 1, 0}),
          transpose(big, {1, 0, 2}),
          transpose(big, {0, 2, 1}),
          every_other,
          slice(x, 1, 2, 5),
          slice(x, 0, 1, 1),
          pad(x, 1, 2, 3, 7),
          pad(x, -1, 0, 1),
          concatenate(std::vector<Value>{x, slice(x, 1, 0, 2), x}, 1),
          concatenate(std::vector<Value>{x}, 0),
          with_logical_axes(x, {"activation_batch", "activation_length", "activation_embed"}),
          concatenate(std::vector<Value>{x, x}, 2),
          broadcast_in_dim(slice(x, 1, 0, 1), {4, 3, 5}, {0, 1, 2}),
          broadcast_in_dim(reshape(slice(x, 0, 0, 1), {6, 5}), {6, 2, 5}, {0, 2})};
    });
  }
}

TEST(ExecutorPrimitives, DynamicSlices) {
  const Tensor x = random_floats({5, 6}, 13), update = random_floats({2, 3}, 14);
  for (int32_t row : {-1, 0, 2, 100}) {
    check({x, update, Tensor::of<int32_t>({}, {row}), Tensor::of<int32_t>({}, {2})},
          [](Graph&, const std::vector<Value>& in) {
            const Value starts[] = {in[2], in[3]};
            const Value y = in[0] * 2.0;  // of the arena: may be updated in place
            return std::vector<Value>{dynamic_slice(in[0], starts, {2, 4}),
                                      dynamic_update_slice(in[0], in[1], starts),
                                      dynamic_update_slice(y, in[1], starts)};
          });
  }
}

TEST(ExecutorPrimitives, Reductions) {
  const std::vector<std::pair<Shape, std::vector<int64_t>>> cases = {
      {{7}, {0}},          {{3, 5}, {0}},          {{3, 5}, {1}},        {{3, 5}, {0, 1}},
      {{4, 3, 5}, {0, 2}}, {{4, 3, 5}, {1}},       {{100000}, {0}},      {{3, 30000}, {1}},
      {{30000, 3}, {0}},   {{30, 200, 3}, {0, 1}}, {{2, 700, 300}, {1}}, {{2, 3, 1}, {2}},
      {{0, 3}, {0}},       {{0, 3}, {1}},          {{2, 129, 9}, {0}},   {{1, 1}, {0, 1}}};
  for (DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kS32, DType::kU8}) {
    for (const auto& [shape, axes] : cases) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + to_string(shape) + to_string(axes));
      const Tensor x = is_float(dtype) ? random_floats(shape, 15, dtype)
                                       : random_integers(shape, 15, dtype, 0, 50);
      check({x}, [axes = axes](Graph&, const std::vector<Value>& in) {
        return std::vector<Value>{reduce_sum(in[0], axes), reduce_max(in[0], axes)};
      });
    }
  }
  check({with_specials(random_floats({4, 9}, 16))}, [](Graph&, const std::vector<Value>& in) {
    return std::vector<Value>{reduce_max(in[0], {0}), reduce_max(in[0], {1}),
                              reduce_sum(in[0], {1})};
  });
}

TEST(ExecutorPrimitives, DotGeneral) {
  struct Case {
    Shape a, b;
    DotDimensions dimensions;
  };
  const std::vector<Case> cases = {
      {{5, 7}, {7, 3}, {{1}, {0}}},
      {{5, 7}, {3, 7}, {{1}, {1}}},
      {{7, 5}, {7, 3}, {{0}, {0}}},
      {{7, 5}, {3, 7}, {{0}, {1}}},
      {{2, 5, 7}, {3, 7}, {{2}, {1}}},
      {{2, 5, 7}, {2, 5, 3}, {{0, 1}, {0, 1}}},
      {{2, 5, 7}, {5, 2, 3}, {{0, 1}, {1, 0}}},  // contracted in another order: packed
      {{4, 5, 7}, {4, 7, 3}, {{2}, {1}, {0}, {0}}},
      {{4, 5, 2, 7},
       {4, 6, 2, 7},
       {{3}, {3}, {0, 2}, {0, 2}}},  // attention scores: strided batches
      {{4, 2, 5, 6}, {4, 6, 2, 7}, {{3}, {1}, {0, 1}, {0, 2}}},
      {{3, 4}, {3, 4}, {{0, 1}, {0, 1}}},
      {{3}, {4}, {{}, {}}},
      {{7}, {7, 3}, {{0}, {0}}},
      {{6, 7}, {7}, {{1}, {0}}},
      {{300, 70}, {70, 200}, {{1}, {0}}},
      {{3, 4, 5}, {5, 3}, {{0, 2}, {1, 0}}},  // free axis between contracted ones
      {{1, 9}, {9, 400}, {{1}, {0}}},
      {{3, 0}, {0, 4}, {{1}, {0}}},
      {{0, 3}, {3, 4}, {{1}, {0}}},
      {{3, 1}, {1, 4}, {{1}, {0}}},
      {{3, 5, 1, 4}, {4, 6}, {{3}, {0}}},
  };
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + to_string(c.a) + to_string(c.b));
      check({random_floats(c.a, 17, dtype), random_floats(c.b, 18, dtype)},
            [&](Graph&, const std::vector<Value>& in) {
              return std::vector<Value>{dot_general(in[0], in[1], c.dimensions),
                                        dot_general(in[0], in[1], c.dimensions, DType::kF32)};
            });
    }
  }
}

TEST(ExecutorPrimitives, Indexing) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kS32}) {
    const auto random = [&](Shape shape, uint32_t stream) {
      return is_float(dtype) ? random_floats(std::move(shape), stream, dtype)
                             : random_integers(std::move(shape), stream, dtype, -50, 50);
    };
    const Tensor indices = Tensor::of<int32_t>({2, 4}, {0, 3, -2, 99, 3, 3, 1, 4});
    check({random({5, 3, 70}, 19), indices, random({8, 3, 70}, 20), random({8, 3, 70}, 21)},
          [](Graph&, const std::vector<Value>& in) {
            const Value flat = reshape(in[1], {8});
            const Value y = in[0] + in[0];  // of the arena: may be added to in place
            const Value as_many =
                in[3] + in[3];  // as large as its updates, which it must not run over
            return std::vector<Value>{gather(in[0], in[1]), scatter_add(in[0], flat, in[2]),
                                      scatter_add(y, flat, in[2]),
                                      scatter_add(as_many, flat, in[2] + in[2])};
          });
    check({random({3, 40}, 22)}, [](Graph&, const std::vector<Value>& in) {
      std::vector<Value> results = top_k(in[0], 5);
      for (Value v : top_k(in[0], 40)) results.push_back(v);
      return results;
    });
  }
  check({with_specials(random_floats({30}, 23))},
        [](Graph&, const std::vector<Value>& in) { return top_k(in[0], 4); });
}

}  // namespace
}  // namespace graft::cpu
