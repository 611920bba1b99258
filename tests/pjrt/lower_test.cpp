// Stacking lists: the same values, and programs whose size does not grow with the number of layers.

#include "pjrt/lower.h"

#include <gtest/gtest.h>

#include <map>

#include "ir/autodiff.h"
#include "ir/interpreter.h"
#include "ir/passes.h"
#include "ir/primitives.h"
#include "ir/scan.h"
#include "ops/helpers.h"
#include "ops/optimizer.h"

namespace graft::pjrt {
namespace {

using graft::testing::count_ops;
using graft::testing::random_tensor;

constexpr int64_t kWidth = 3;

// A step of `layers` layers x = tanh(w_l x) with AdamW on each w, as train/step.cpp makes it;
// `micro` batches are summed over by an outer scan.
std::unique_ptr<Graph> make_step(int64_t layers, int64_t micro) {
  auto graph = std::make_unique<Graph>();
  Graph& g = *graph;
  std::vector<Value> w, m, v;
  const Type type{DType::kF32, {kWidth, kWidth}};
  for (int64_t l = 0; l < layers; ++l) {
    w.push_back(g.input(fmt::format("w{}", l), type, VariableKind::kAdapter));
  }
  for (int64_t l = 0; l < layers; ++l) {
    m.push_back(g.input(fmt::format("w{}.m", l), type, VariableKind::kOptimizer));
    v.push_back(g.input(fmt::format("w{}.v", l), type, VariableKind::kOptimizer));
  }
  const Value x = g.input("x", {DType::kF32, {micro, kWidth}});
  const auto loss_of = [](Graph& body_graph, const std::vector<Value>& weights, Value start) {
    ScanOperands operands;
    operands.carries = {start};
    operands.lists = {weights};
    const ScanResults results =
        scan(body_graph, static_cast<int64_t>(weights.size()), operands, [](ScanBody& body) {
          body.carry_out(0, tanh(dot_general(body.element(0), body.carry(0),
                                             {.lhs_contract = {1}, .rhs_contract = {0}})));
        });
    return reduce_sum(results.carries[0] * results.carries[0], {0});
  };
  ScanOperands operands;
  operands.invariants = w;
  operands.stacked = {x};
  operands.carries.push_back(scalar(g, 0));
  for (int64_t l = 0; l < layers; ++l) operands.carries.push_back(splat(g, 0, type));
  const ScanResults sums = scan(g, micro, operands, [&](ScanBody& body) {
    std::vector<Value> weights;
    for (int64_t l = 0; l < layers; ++l) {
      weights.push_back(body.invariant(static_cast<size_t>(l)));
    }
    const Value loss = loss_of(body.graph(), weights, body.stacked(0));
    body.carry_out(0, body.carry(0) + loss);
    const std::vector<Value> gradient = gradients(loss, weights);
    for (size_t l = 0; l < gradient.size(); ++l) {
      body.carry_out(l + 1, body.carry(l + 1) + gradient[l]);
    }
  });
  std::vector<Value> squares;
  for (int64_t l = 0; l < layers; ++l) {
    squares.push_back(reshape(sum_squares(sums.carries[static_cast<size_t>(l) + 1]), {1}));
  }
  const Value all = concatenate(squares, 0);
  const Value clip = 1 / (sqrt(reduce_sum(all, {0})) + 1.0);
  const Value one = scalar(g, 0.5), finite = is_finite(clip);
  for (size_t l = 0; l < w.size(); ++l) {
    const AdamWResult r =
        adamw({w[l], m[l], v[l], sums.carries[l + 1], clip, one, one, one, finite}, {});
    g.output(fmt::format("w{}", l), r.parameter, w[l]);
    g.output(fmt::format("w{}.m", l), r.m, m[l]);
    g.output(fmt::format("w{}.v", l), r.v, v[l]);
  }
  g.output("loss", sums.carries[0]);
  g.output("squares", all);
  verify(g);
  return eliminate_dead_code(g);
}

using Named = std::map<std::string, Tensor>;

Named random_inputs(const Graph& graph) {
  Named inputs;
  uint32_t stream = 1;
  for (const Input& input : graph.inputs()) {
    const Type& type = graph.type(input.value);
    Tensor value = random_tensor(type.shape, stream++, 1, DType::kF32);
    if (input.name.ends_with(".v")) {  // second moments are not negative
      for (int64_t i = 0; i < value.elements(); ++i) {
        value.data<float>()[i] = std::abs(value.data<float>()[i]);
      }
    }
    inputs[input.name] = value;
  }
  return inputs;
}

Named run(const Graph& graph, const Named& inputs) {
  std::vector<Tensor> values;
  for (const Input& input : graph.inputs()) values.push_back(inputs.at(input.name));
  const std::vector<Tensor> results = interpret(graph, values);
  Named outputs;
  for (size_t i = 0; i < results.size(); ++i) outputs[graph.outputs()[i].name] = results[i];
  return outputs;
}

Tensor stack_of(const Bundle& bundle, const Named& inputs) {
  Shape shape = inputs.at(bundle.names[0]).shape();
  shape.insert(shape.begin(), static_cast<int64_t>(bundle.names.size()));
  Tensor stack = Tensor::empty(DType::kF32, shape);
  std::byte* to = stack.mutable_bytes();
  for (const std::string& name : bundle.names) {
    const Tensor& part = inputs.at(name);
    std::memcpy(to, part.bytes(), part.size_bytes());
    to += part.size_bytes();
  }
  return stack;
}

Named run(const Lowered& lowered, const Named& inputs) {
  std::vector<Tensor> values;
  for (const Bundle& bundle : lowered.inputs) {
    values.push_back(bundle.stacked ? stack_of(bundle, inputs) : inputs.at(bundle.names[0]));
  }
  const std::vector<Tensor> results = interpret(*lowered.graph, values);
  Named outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    const Bundle& bundle = lowered.outputs[i];
    for (size_t k = 0; k < bundle.names.size(); ++k) {
      const auto row = static_cast<int64_t>(k);
      const Tensor& whole = results[i];
      outputs[bundle.names[k]] =
          bundle.stacked ? whole.rows(row, row + 1)
                               .reshaped(Shape(whole.shape().begin() + 1, whole.shape().end()))
                         : whole;
    }
  }
  return outputs;
}

TEST(Lower, StackedStepGivesTheSameValues) {
  for (const int64_t micro : {1, 3}) {
    const auto graph = make_step(12, micro);
    const Named inputs = random_inputs(*graph);
    const Named expected = run(*graph, inputs);
    for (const bool whole : {false, true}) {
      const Named actual = run(whole ? lower(*graph) : stack_lists(*graph), inputs);
      ASSERT_EQ(actual.size(), expected.size());
      for (const auto& [name, value] : expected) {
        graft::testing::expect_close(actual.at(name), graft::testing::numbers(value), 1e-6, name);
      }
    }
  }
}

size_t nodes_of(const Graph& graph) {
  size_t count = graph.nodes().size();
  for (const Node& node : graph.nodes()) {
    for (const auto& body : node.bodies) count += nodes_of(*body);
  }
  return count;
}

// But for the sum of squares of each variable, five small nodes a layer.
TEST(Lower, SizeHardlyGrowsWithLayers) {
  for (const int64_t micro : {1, 3}) {
    const Lowered small = lower(*make_step(10, micro)), large = lower(*make_step(80, micro));
    EXPECT_LE(nodes_of(*large.graph), nodes_of(*small.graph) + 70 * 5);
    // w, m and v are one input each, and one output in its place.
    EXPECT_EQ(large.inputs.size(), 4U);
    EXPECT_EQ(large.outputs.size(), 5U);
    EXPECT_EQ(large.inputs[0].names.size(), 80U);
    for (const Node& node : large.graph->nodes()) {
      if (node.op != &kScan) continue;
      EXPECT_EQ(ScanLayout::of(node).lists_in + ScanLayout::of(node).lists_out, 0);
    }
  }
}

// Layers below the first trained one are a list of their own, and a part of a larger one is a
// slice.
TEST(Lower, TakesWhatDoesNotFitOneByOne) {
  Graph g;
  std::vector<Value> w;
  for (int l = 0; l < 4; ++l)
    w.push_back(g.input(fmt::format("w{}", l), {DType::kF32, {2}}, VariableKind::kParam));
  const auto sum = [&](const std::vector<Value>& list) {
    ScanOperands operands;
    operands.carries = {splat(g, 1, {DType::kF32, {2}})};
    operands.lists = {list};
    return scan(g, static_cast<int64_t>(list.size()), operands, [](ScanBody& body) {
      body.carry_out(0, tanh(body.carry(0) + body.element(0)));
      body.list_out(body.carry(0) * body.element(0));
    });
  };
  const ScanResults all = sum(w), part = sum({w[1], w[2]}), mixed = sum({w[3], w[0], w[3]}),
                    one = sum({w[2]});
  g.output("all", all.carries[0]);
  g.output("part", part.carries[0]);
  g.output("mixed", mixed.carries[0]);
  g.output("one", one.carries[0]);
  g.output("second", all.lists[0][1]);
  g.output("single", one.lists[0][0]);
  g.output("third", mixed.lists[0][2]);
  verify(g);
  const Named inputs = random_inputs(g);
  const Named expected = run(g, inputs), actual = run(lower(g), inputs);
  for (const auto& [name, value] : expected) {
    graft::testing::expect_same_bytes(actual.at(name), value, name);
  }
}

}  // namespace
}  // namespace graft::pjrt
