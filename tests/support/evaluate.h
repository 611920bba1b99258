#pragma once
// Runs what a function builds on given tensors, through the reference interpreter:
//
//   Tensor y = evaluate1({x}, [](Graph&, const std::vector<Value>& in) { return exp(in[0]); });

#include <functional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/interpreter.h"

namespace graft::testing {

inline std::vector<Tensor> evaluate(
    const std::vector<Tensor>& inputs,
    const std::function<std::vector<Value>(Graph&, const std::vector<Value>&)>& build,
    InterpreterOptions options = {}) {
  Graph graph;
  std::vector<Value> values;
  for (const Tensor& input : inputs) {
    values.push_back(
        graph.input("in" + std::to_string(values.size()), {input.dtype(), input.shape()}));
  }
  for (Value output : build(graph, values)) graph.output("out", output);
  verify(graph);
  return interpret(graph, inputs, options);
}

inline Tensor evaluate1(const std::vector<Tensor>& inputs,
                        const std::function<Value(Graph&, const std::vector<Value>&)>& build,
                        InterpreterOptions options = {}) {
  return evaluate(
      inputs,
      [&](Graph& graph, const std::vector<Value>& in) {
        return std::vector<Value>{build(graph, in)};
      },
      options)[0];
}

}  // namespace graft::testing
