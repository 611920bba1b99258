#pragma once
// Runs a native kernel alone and compares it with its operation's decomposition.
//
// Every run gets results and scratch full of NaN, scratch of exactly the size asked for with guard
// bytes behind it, and is repeated for several team sizes and every instruction set of the machine:
// the bits must be the same for any team. The oracle is the reference interpreter in double
// precision.
//
//   check_kernel(kRmsNorm, {x, w}, attributes, {.tolerance = 1e-6});

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "cpu/kernel.h"
#include "cpu/kernels/simd.h"
#include "ir/graph.h"
#include "ir/interpreter.h"

#include <hwy/targets.h>

// Compiled for the PJRT executor too, where the decomposition runs through a plugin.
#ifdef GRAFT_THROUGH_PJRT
#include "pjrt/run_graph.h"
#endif

namespace graft::cpu::testing {

inline Tensor random_tensor(Shape shape, uint32_t stream, double scale = 1,
                            DType dtype = DType::kF32) {
  Tensor tensor = Tensor::empty(DType::kF32, std::move(shape));
  Philox random(11, stream);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    tensor.data<float>()[i] = static_cast<float>(scale * (2 * random.uniform() - 1));
  }
  return tensor.as(dtype);
}

inline Tensor s32(Shape shape, const std::vector<int32_t>& values) {
  return Tensor::of<int32_t>(std::move(shape), values);
}
inline Tensor f32(float value) { return Tensor::of<float>({}, {value}); }
inline Tensor s32(int32_t value) { return Tensor::of<int32_t>({}, {value}); }
inline Tensor u32(uint32_t value) { return Tensor::of<uint32_t>({}, {value}); }

// A graph of the one operation.
struct OneNode {
  Graph graph;
  std::vector<Type> in, out;

  OneNode(const Op& op, const std::vector<Tensor>& inputs, const Attributes& attributes) {
    std::vector<Value> operands;
    for (const Tensor& t : inputs) {
      in.push_back({t.dtype(), t.shape()});
      operands.push_back(graph.input("in" + std::to_string(operands.size()), in.back()));
    }
    const std::vector<Value> results = graph.add(op, operands, attributes);
    for (size_t i = 0; i < results.size(); ++i) {
      out.push_back(results[i].type());
      graph.output("out" + std::to_string(i), results[i]);
    }
  }
  const Node& node() const { return graph.nodes()[0]; }
};

inline std::vector<Tensor> run_kernel(const OneNode& one, const std::vector<Tensor>& inputs,
                                      int threads) {
  const Kernel* kernel = find_kernel(one.node(), one.in, one.out);
  if (kernel == nullptr) {
    ADD_FAILURE() << "no kernel for " << one.node().op->name;
    return {};
  }
  std::vector<Buffer> in, out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    in.push_back({&one.in[i], const_cast<std::byte*>(inputs[i].bytes())});
  }
  std::vector<Tensor> results;
  for (const Type& type : one.out) {
    results.push_back(Tensor::empty(type.dtype, type.shape));
    std::memset(results.back().mutable_bytes(), 0xFF, results.back().size_bytes());
  }
  for (size_t i = 0; i < results.size(); ++i) {
    out.push_back({&one.out[i], results[i].mutable_bytes()});
  }
  constexpr size_t kGuard = 256;
  const size_t bytes = kernel->scratch_bytes == nullptr
                           ? 0
                           : kernel->scratch_bytes(one.node(), one.in, one.out, threads);
  Tensor scratch = Tensor::empty(DType::kU8, {static_cast<int64_t>(bytes + kGuard)});
  std::memset(scratch.mutable_bytes(), 0xFF, bytes + kGuard);
  kernel->run({one.node(), in, out, {scratch.mutable_bytes(), bytes}, threads});
  for (size_t i = 0; i < kGuard; ++i) {
    if (scratch.bytes()[bytes + i] != std::byte{0xFF}) {
      ADD_FAILURE() << one.node().op->name << " wrote beyond its scratch of " << bytes << " bytes";
      break;
    }
  }
  return results;
}

inline std::vector<double> numbers(const Tensor& tensor) {
  const Tensor wide = tensor.as(DType::kF64);
  return {wide.data<double>(), wide.data<double>() + wide.elements()};
}

// |actual - expected| / |expected| over all elements, where |expected| counts as if its elements
// were `floor` in the mean if they are less; equal infinities count as equal.
inline double relative_distance(const Tensor& actual, const Tensor& expected, double floor) {
  const std::vector<double> a = numbers(actual), e = numbers(expected);
  double difference = 0, size = 0;
  const double least = std::max(1e-60, floor * floor * static_cast<double>(e.size()));
  for (size_t i = 0; i < e.size(); ++i) {
    if (a[i] == e[i]) {
      if (std::isfinite(e[i])) size += e[i] * e[i];
      continue;
    }
    difference += (a[i] - e[i]) * (a[i] - e[i]);
    size += e[i] * e[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / std::max(size, least));
}

struct KernelCheck {
  double tolerance = 1e-6;
  std::vector<double> tolerances = {};  // of each result, if they differ
  double floor = 0;                     // what counts as small, see relative_distance
  bool every_instruction_set = true;
  std::vector<Tensor> expected = {};  // instead of the interpreter's
};

inline void expect_close(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
                         const KernelCheck& check, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double tolerance = check.tolerances.empty() ? check.tolerance : check.tolerances[i];
    const double distance = relative_distance(actual[i], expected[i], check.floor);
    EXPECT_LE(distance, tolerance) << what << ", result " << i;
    EXPECT_FALSE(std::isnan(distance)) << what << ", result " << i;
  }
}

// Runs the kernel with several teams and instruction sets; returns the results of one.
inline std::vector<Tensor> check_kernel(const Op& op, const std::vector<Tensor>& inputs,
                                        const Attributes& attributes,
                                        const KernelCheck& check = {}) {
  const OneNode one(op, inputs, attributes);
  const std::vector<Tensor> expected =
      !check.expected.empty()
          ? check.expected
          : interpret(one.graph, inputs, {.precision = InterpreterOptions::kF64});
#ifdef GRAFT_THROUGH_PJRT
  if (!pjrt::testing::has_plugin()) {  // the interpreter's values, for tests that go on with them
    std::vector<Tensor> values;
    for (size_t i = 0; i < expected.size(); ++i) {
      const ValueId result = one.graph.outputs()[i].value;
      values.push_back(expected[i].as(one.graph.type(result).dtype));
    }
    return values;
  }
  const std::vector<Tensor> through = pjrt::testing::run_graph(one.graph, inputs);
  KernelCheck others = check;  // whose exp and tanh are not the native kernels'
  others.tolerance = std::max(check.tolerance, 5e-6);
  expect_close(through, expected, others, std::string(op.name) + " through PJRT");
  return through;
#endif
  std::vector<Tensor> results;
  std::vector<int64_t> sets = hwy::SupportedAndGeneratedTargets();
  if (!check.every_instruction_set) sets.resize(1);
  for (const int64_t set : sets) {
    hwy::SetSupportedTargetsForTest(set);
    const std::string what =
        std::string(op.name) + attributes.to_string() + " on " + hwy::TargetName(set);
    const std::vector<Tensor> alone = run_kernel(one, inputs, 1);
    expect_close(alone, expected, check, what);
    for (const int threads : {2, 3, 7}) {
      const std::vector<Tensor> team = run_kernel(one, inputs, threads);
      for (size_t i = 0; i < alone.size() && i < team.size(); ++i) {
        EXPECT_EQ(std::memcmp(alone[i].bytes(), team[i].bytes(), alone[i].size_bytes()), 0)
            << what << ", result " << i << ": " << threads << " threads give other bits than one";
      }
    }
    if (results.empty()) results = alone;
  }
  hwy::SetSupportedTargetsForTest(0);
  return results;
}

}  // namespace graft::cpu::testing
