#pragma once
// Compiles and runs graphs under conditions that show faults of a memory plan: the arena is full of
// NaN before each run, guard bytes lie behind it, inputs must come out as they went in unless
// donated, a second run and every team size and unrolling must give the same bits.
//
//   expect_executes(graph, inputs);   // against the interpreter

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "cpu/executable.h"
#include "ir/interpreter.h"

// The tests of the PJRT executor are compiled from the same files: the same graphs, through a
// plugin.
#ifdef GRAFT_THROUGH_PJRT
#include "pjrt/run_graph.h"
#endif

namespace graft::cpu::testing {

inline Tensor random_floats(Shape shape, uint32_t stream, DType dtype = DType::kF32,
                            double low = -1, double high = 1) {
  Tensor tensor = Tensor::empty(DType::kF64, std::move(shape));
  Philox random(5, stream);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    tensor.data<double>()[i] = low + (high - low) * random.uniform();
  }
  return tensor.as(dtype);
}

inline Tensor random_integers(Shape shape, uint32_t stream, DType dtype, int64_t low,
                              int64_t high) {
  Tensor tensor = Tensor::empty(DType::kS64, std::move(shape));
  Philox random(6, stream);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    tensor.data<int64_t>()[i] =
        low + static_cast<int64_t>(random.below(static_cast<uint64_t>(high - low)));
  }
  return tensor.as(dtype);
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.size_bytes() == 0 || std::memcmp(a.bytes(), b.bytes(), a.size_bytes()) == 0);
}

// Runs a compiled graph twice on poisoned storage; returns the outputs of the first run.
inline std::vector<Tensor> run_guarded(Executable& executable, const std::vector<Tensor>& inputs) {
  constexpr size_t kGuard = 4096;
  Arena arena;
  arena.reserve(executable.plan().arena_bytes + kGuard);
  std::vector<Tensor> first;
  for (int round = 0; round < 2; ++round) {
    std::memset(arena.data(), 0xFF, arena.size());
    std::vector<Tensor> bound;
    for (const Tensor& input : inputs) bound.push_back(input.clone());
    for (size_t i = 0; i < bound.size(); ++i) executable.bind(i, bound[i]);
    executable.run(arena);
    for (size_t i = executable.plan().arena_bytes; i < arena.size(); ++i) {
      if (arena.data()[i] != std::byte{0xFF}) {
        ADD_FAILURE() << "byte " << i << " was written, behind an arena of "
                      << executable.plan().arena_bytes;
        break;
      }
    }
    std::vector<bool> donated(inputs.size());
    for (size_t i = 0; i < executable.outputs().size(); ++i) {
      const Tensor output = executable.output(i);
      const int replaced = executable.outputs()[i].donated_input;
      if (replaced >= 0) {
        donated[static_cast<size_t>(replaced)] = true;
        EXPECT_TRUE(same_bytes(output, bound[static_cast<size_t>(replaced)]))
            << "donated output " << i;
      }
      if (round == 0) {
        first.push_back(output);
      } else {
        EXPECT_TRUE(same_bytes(output, first[i])) << "output " << i << " of a second run";
      }
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_TRUE(donated[i] || same_bytes(bound[i], inputs[i])) << "input " << i << " was written";
    }
  }
  return first;
}

inline double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 1e-12;
    case DType::kF32: return 2e-6;
    case DType::kF16: return 2e-3;
    case DType::kBF16: return 1.6e-2;
    default: return 0;
  }
}

// Element by element; relative to the larger of the element and `scale`.
inline void expect_near(const Tensor& actual, const Tensor& expected, const std::string& what,
                        double tolerance = -1, double scale = 1) {
  ASSERT_EQ(actual.dtype(), expected.dtype()) << what;
  ASSERT_EQ(actual.shape(), expected.shape()) << what;
  if (tolerance < 0) tolerance = tolerance_of(actual.dtype());
  const Tensor a = actual.as(DType::kF64), e = expected.as(DType::kF64);
  for (int64_t i = 0; i < a.elements(); ++i) {
    const double x = a.data<double>()[i], y = e.data<double>()[i];
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const double limit = tolerance * std::max(scale, std::abs(y));
    ASSERT_LE(std::abs(x - y), limit) << what << ", element " << i << ": " << x << ", not " << y;
  }
}

// With one thread and with three, scanned and unrolled: the same bits.
inline std::vector<Tensor> execute(const Graph& graph, const std::vector<Tensor>& inputs) {
  verify(graph);
  Executable one = compile(graph, {.threads = 1});
  const std::vector<Tensor> result = run_guarded(one, inputs);
  for (const bool unrolled : {false, true}) {
    Executable other = compile(graph, {.threads = 3, .unroll_scans = unrolled});
    const std::vector<Tensor> again = run_guarded(other, inputs);
    for (size_t i = 0; i < result.size(); ++i) {
      EXPECT_TRUE(same_bytes(again[i], result[i]))
          << "output " << i << (unrolled ? " unrolled" : " with three threads");
    }
  }
  return result;
}

inline void expect_executes(const Graph& graph, const std::vector<Tensor>& inputs,
                            double tolerance = -1) {
#ifdef GRAFT_THROUGH_PJRT
  if (!pjrt::testing::has_plugin()) GTEST_SKIP() << pjrt::testing::kNoPlugin;
  const std::vector<Tensor> actual = pjrt::testing::run_graph(graph, inputs);
  if (tolerance < 0 && !actual.empty()) {
    tolerance = 4 * tolerance_of(actual[0].dtype());
  }
#else
  const std::vector<Tensor> actual = execute(graph, inputs);
#endif
  const std::vector<Tensor> expected = interpret(graph, inputs);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    expect_near(actual[i], expected[i], "output \"" + graph.outputs()[i].name + "\"", tolerance);
  }
}

}  // namespace graft::cpu::testing
