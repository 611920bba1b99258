#pragma once
// The reference interpreter: what a graph means, in plain loops. It is the oracle of executors,
// kernels and gradients, so it is written to be read, not to be fast.
//
// All float arithmetic is done in double. With kDeclared every result of every node is then rounded
// once to its declared type: an f32 sum is summed in double, in index order, and rounded at its
// end. With kF64 nothing is rounded, so that finite differences of a graph have fifteen digits:
// float inputs may be given as f64 whatever they are declared, and float outputs come as f64.
// Integers wrap modulo 2^bits.
//
// A composite is interpreted through its decomposition.
//
//   std::vector<Tensor> out = interpret(graph, inputs, {.precision = InterpreterOptions::kF64});

#include <cstdint>
#include <span>
#include <vector>

#include "base/tensor.h"
#include "ir/graph.h"

namespace graft {

struct InterpreterOptions {
  enum Precision : uint8_t { kDeclared, kF64 };
  Precision precision = kDeclared;
};

// The outputs in the graph's order. Raises Error where an input is not of the type that the graph
// says.
std::vector<Tensor> interpret(const Graph& graph, std::span<const Tensor> inputs,
                              InterpreterOptions options = {});

}  // namespace graft
