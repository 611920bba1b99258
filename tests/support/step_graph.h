#pragma once
// Runs graphs of train/step.h on a batch: what goes in by name, and what comes out.
//
//   const auto graph = build_gradients(options, shape_of(batch));
//   Outputs out = run_on(compute, *graph, graph_inputs(*graph, state.tensors, batch));

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/batches.h"
#include "ir/executor.h"
#include "train/compute.h"
#include "train/step.h"

namespace graft::testing {

// Inputs of a graph of build_gradients, in order.
inline std::vector<Tensor> graph_inputs(const Graph& graph,
                                        const std::map<std::string, Tensor>& tensors,
                                        const Batch& batch) {
  Tensor weights = Tensor::zeros(DType::kF32, batch.targets.shape());
  for (int64_t i = 0; i < weights.elements(); ++i) {
    if (batch.targets.data<int32_t>()[i] >= 0) {
      weights.data<float>()[i] = 1.0F / static_cast<float>(batch.trained_tokens);
    }
  }
  const std::map<std::string, Tensor> data{{step_input::kInputIds, batch.input_ids},
                                           {step_input::kSegments, batch.segment_ids},
                                           {step_input::kPositions, batch.positions},
                                           {step_input::kTargetPositions, batch.target_positions},
                                           {step_input::kTargets, batch.targets},
                                           {step_input::kWeights, weights}};
  std::vector<Tensor> inputs;
  for (const Input& input : graph.inputs()) {
    const auto found = data.find(input.name);
    inputs.push_back(found != data.end() ? found->second : tensors.at(input.name));
  }
  return inputs;
}

using Outputs = std::map<std::string, Tensor>;

inline Outputs run_on(const Compute& compute, const Graph& graph,
                      const std::vector<Tensor>& inputs) {
  const std::unique_ptr<Executor> executor = make_executor(compute);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = graph.inputs()[i];
    if (input.kind == VariableKind::kData) continue;
    executor->set_variable({input.name, input.kind, inputs[i].dtype(), inputs[i].shape(),
                            std::vector<std::string>(inputs[i].shape().size())},
                           inputs[i]);
  }
  const std::unique_ptr<Program> program = executor->compile(graph);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (graph.inputs()[i].kind == VariableKind::kData) {
      program->bind(graph.inputs()[i].name, inputs[i]);
    }
  }
  program->run();
  Outputs outputs;
  for (const Output& output : graph.outputs()) outputs[output.name] = program->output(output.name);
  return outputs;
}

}  // namespace graft::testing
