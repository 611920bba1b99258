#pragma once
// What the tests of composites share: random operands, comparisons, and finite differences over
// operands that are given as f64 tensors.
//
//   expect_gradients({x, w}, build);            // of every input of floats
//   expect_gradients({x, w, ids}, build, {1});  // of w alone

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "ir/passes.h"
#include "ir/primitives.h"
#include "support/evaluate.h"
#include "support/gradient_check.h"

namespace graft::testing {

using Build = BuildFunction;

inline std::unique_ptr<Graph> build_graph(const std::vector<Tensor>& inputs, const Build& build) {
  auto graph = std::make_unique<Graph>();
  std::vector<Value> values;
  for (size_t i = 0; i < inputs.size(); ++i) {
    values.push_back(graph->input(fmt::format("in{}", i), {inputs[i].dtype(), inputs[i].shape()}));
  }
  const std::vector<Value> results = build(*graph, values);
  for (size_t i = 0; i < results.size(); ++i) graph->output(fmt::format("out{}", i), results[i]);
  verify(*graph);
  return graph;
}

// Uniform in [-scale, scale).
inline Tensor random_tensor(Shape shape, uint32_t stream, double scale = 1,
                            DType dtype = DType::kF64) {
  Tensor tensor = Tensor::empty(DType::kF64, std::move(shape));
  Philox random(7, stream);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    tensor.data<double>()[i] = scale * (2 * random.uniform() - 1);
  }
  return tensor.as(dtype);
}

inline Tensor f64_scalar(double value) { return Tensor::of<double>({}, {value}); }
inline Tensor f32_scalar(float value) { return Tensor::of<float>({}, {value}); }
inline Tensor s32_scalar(int32_t value) { return Tensor::of<int32_t>({}, {value}); }
inline Tensor u32_scalar(uint32_t value) { return Tensor::of<uint32_t>({}, {value}); }

inline std::vector<double> numbers(const Tensor& tensor) {
  const Tensor wide = tensor.as(DType::kF64);
  return {wide.data<double>(), wide.data<double>() + wide.elements()};
}

// Every element within `tolerance` of the expected one, relative to the largest expected magnitude.
inline void expect_close(const Tensor& actual, const std::vector<double>& expected,
                         double tolerance, std::string_view what = "") {
  const std::vector<double> values = numbers(actual);
  ASSERT_EQ(values.size(), expected.size()) << what;
  double scale = 1e-30;
  for (const double x : expected) {
    if (std::isfinite(x)) scale = std::max(scale, std::abs(x));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == expected[i]) continue;  // infinities
    ASSERT_LE(std::abs(values[i] - expected[i]), tolerance * scale)
        << what << " element " << i << ": " << values[i] << " where " << expected[i]
        << " is expected";
  }
}

inline void expect_same_bytes(const Tensor& a, const Tensor& b, std::string_view what = "") {
  ASSERT_EQ(a.dtype(), b.dtype()) << what;
  ASSERT_EQ(a.shape(), b.shape()) << what;
  EXPECT_EQ(std::memcmp(a.bytes(), b.bytes(), a.size_bytes()), 0) << what;
}

// How often an operation stands in a graph, scan bodies included.
inline int count_ops(const Graph& graph, const Op& op) {
  int count = 0;
  for (const Node& node : graph.nodes()) {
    count += node.op == &op ? 1 : 0;
    for (const auto& body : node.bodies) count += count_ops(*body, op);
  }
  return count;
}

// Against finite differences with respect to the inputs `wrt`, or every input of floats.
inline void expect_gradients(const std::vector<Tensor>& inputs, const Build& build,
                             const std::vector<size_t>& wrt = {}) {
  std::vector<CheckedInput> checked;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool chosen = wrt.empty() || std::find(wrt.begin(), wrt.end(), i) != wrt.end();
    checked.push_back({.type = {inputs[i].dtype(), inputs[i].shape()},
                       .value = inputs[i],
                       .differentiate = chosen});
  }
  check_gradients(checked, build, {.tolerance = 1e-7});
}

}  // namespace graft::testing
