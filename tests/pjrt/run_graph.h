#pragma once
// Runs graphs through the CPU plugin, where it is installed (graft plugins install cpu).
//
//   if (!has_plugin()) GTEST_SKIP() << kNoPlugin;
//   std::vector<Tensor> out = run_graph(graph, inputs);

#include <gtest/gtest.h>

#include <set>
#include <unordered_map>
#include <vector>

#include "ir/passes.h"
#include "pjrt/executor.h"
#include "pjrt/wheels.h"

namespace graft::pjrt::testing {

inline constexpr const char* kNoPlugin =
    "THE CPU PLUGIN IS NOT INSTALLED: run graft plugins install cpu";

inline bool has_plugin() { return is_installed(plugin_kind("cpu")); }

// One client for all tests: opening one takes a third of a second.
inline Executor& cpu_executor() {
  static const std::unique_ptr<Executor> executor = make_executor({.plugin = find_plugin("cpu")});
  return *executor;
}

// Inputs that an output replaces are variables; the rest is data. Tests name inputs and outputs as
// they like, so the graph is copied with names of its own.
inline std::vector<Tensor> run_graph(const Graph& graph, const std::vector<Tensor>& inputs,
                                     Executor& executor = cpu_executor()) {
  static int run = 0;
  const std::string prefix = fmt::format("run{}.", run++);
  std::set<int> replaced;
  for (const Output& output : graph.outputs()) replaced.insert(output.donated_input);
  Graph copy;
  std::unordered_map<ValueId, Value> known;
  std::vector<std::string> names;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = graph.inputs()[i];
    const Type& type = graph.type(input.value);
    const bool variable = replaced.contains(static_cast<int>(i));
    const VariableKind kind = variable ? VariableKind::kParam : VariableKind::kData;
    names.push_back(fmt::format("{}in{}", prefix, i));
    known[input.value] = copy.input(names[i], type, kind);
    if (!variable) continue;
    executor.set_variable(
        {names[i], kind, type.dtype, type.shape, std::vector<std::string>(type.shape.size())},
        inputs[i].clone());
  }
  std::vector<ValueId> wanted;
  for (const Output& output : graph.outputs()) wanted.push_back(output.value);
  const std::vector<Value> values = copy_values(graph, wanted, copy, known);
  for (size_t i = 0; i < values.size(); ++i) {
    const int input = graph.outputs()[i].donated_input;
    const std::string name = fmt::format("{}out{}", prefix, i);
    if (input < 0) {
      copy.output(name, values[i]);
    } else {
      copy.output(name, values[i], known.at(graph.inputs()[static_cast<size_t>(input)].value));
    }
  }
  const std::unique_ptr<Program> program = executor.compile(copy);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!replaced.contains(static_cast<int>(i))) program->bind(names[i], inputs[i]);
  }
  program->run();
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < values.size(); ++i) {
    outputs.push_back(program->output(fmt::format("{}out{}", prefix, i)));
  }
  return outputs;
}

}  // namespace graft::pjrt::testing
