#include "train/scorer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ir/passes.h"
#include "models/model.h"

namespace graft {
namespace {

std::unique_ptr<Graph> build_logits(const ModelState& state, DType dtype, int64_t length) {
  auto graph = std::make_unique<Graph>();
  std::map<std::string, Value> variables;
  for (const auto* list : {&state.parameters, &state.adapter.variables}) {
    for (const VariableSpec& v : *list) {
      variables[v.name] = graph->input(v.name, {v.dtype, v.shape}, v.kind);
    }
  }
  const Type row{DType::kS32, {1, length}};
  const TokenInputs tokens{graph->input("ids", row), graph->input("segments", row),
                           graph->input("positions", row)};
  ForwardOptions options;
  options.dtype = dtype;
  options.lora = &state.adapter.sites;
  options.packed = &state.packed;
  const auto lookup = [&](const std::string& name) { return variables.at(name); };
  const ForwardResult result = forward(*graph, state.config, tokens, lookup, options);
  graph->output("logits", logits(state.config, result.hidden,
                                 find_weight(lookup, &state.packed, head_name(state.config))));
  verify(*graph);
  return eliminate_dead_code(*merge_common_subexpressions(*graph));
}

// Row b of `given`, or what `otherwise(t)` says.
template <typename F>
Tensor row_or(const Tensor& given, int64_t b, int64_t length, F otherwise) {
  if (given.defined()) return given.rows(b, b + 1).clone();
  Tensor row = Tensor::empty(DType::kS32, {1, length});
  for (int64_t t = 0; t < length; ++t) row.data<int32_t>()[t] = otherwise(t);
  return row;
}

double negative_log_likelihood(std::span<const float> logits, int32_t target) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x) - largest);
  return largest + std::log(sum) - static_cast<double>(logits[static_cast<size_t>(target)]);
}

}  // namespace

Scores score(const ModelState& state, const Compute& compute, const ScoreInput& input) {
  const int64_t rows = input.ids.shape()[0], length = input.ids.shape()[1];
  const int64_t vocabulary = state.config.vocab_size;
  const auto graph = build_logits(state, compute.dtype, length);
  const std::unique_ptr<Executor> executor = make_executor(compute);
  for (const auto* list : {&state.parameters, &state.adapter.variables}) {
    for (const VariableSpec& v : *list) executor->set_variable(v, state.tensors.at(v.name));
  }
  const std::unique_ptr<Program> program = executor->compile(*graph);
  executor->reserve();

  Scores scores;
  scores.logits = Tensor::empty(DType::kF32, {rows, length, vocabulary});
  double total = 0;
  int64_t count = 0;
  for (int64_t b = 0; b < rows; ++b) {
    const int64_t real = input.lengths.defined() ? input.lengths.data<int32_t>()[b] : length;
    program->bind("ids", input.ids.rows(b, b + 1).clone());
    program->bind("segments",
                  row_or(input.segments, b, length, [&](int64_t t) { return t < real; }));
    program->bind("positions", row_or(input.positions, b, length, [](int64_t t) { return t; }));
    program->run();
    const Tensor row = program->output("logits");
    float* out = scores.logits.data<float>() + b * length * vocabulary;
    std::memcpy(out, row.bytes(), row.size_bytes());
    if (!input.labels.defined()) continue;
    const int32_t* labels = input.labels.data<int32_t>() + b * length;
    for (int64_t t = 0; t + 1 < length; ++t) {
      if (labels[t + 1] == kIgnoredLabel) continue;
      total += negative_log_likelihood({out + t * vocabulary, static_cast<size_t>(vocabulary)},
                                       labels[t + 1]);
      ++count;
    }
  }
  scores.loss =
      count > 0 ? total / static_cast<double>(count) : std::numeric_limits<double>::quiet_NaN();
  return scores;
}

}  // namespace graft
