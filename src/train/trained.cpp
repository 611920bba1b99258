#include "train/trained.h"

#include <algorithm>
#include <regex>
#include <unordered_map>

namespace graft {

TrainedParameters choose_trained_parameters(const TrainingOptions& training,
                                            const std::vector<VariableSpec>& parameters) {
  TrainedParameters result;
  std::vector<std::regex> patterns;
  std::vector<bool> matched(training.trainable.size(), false);
  for (const std::string& text : training.trainable) patterns.emplace_back(text);
  for (const VariableSpec& v : parameters) {
    bool trained = patterns.empty();
    for (size_t i = 0; i < patterns.size(); ++i) {
      if (!std::regex_search(v.name, patterns[i])) continue;
      matched[i] = trained = true;
    }
    if (!trained) continue;
    result.trained.push_back(v.name);
    const bool is_matrix = v.shape.size() > 1;
    if (!training.decay_all && !is_matrix) result.no_decay.push_back(v.name);
  }
  for (size_t i = 0; i < matched.size(); ++i) {
    if (!matched[i]) result.unmatched.push_back(training.trainable[i]);
  }
  std::sort(result.trained.begin(), result.trained.end());
  return result;
}

StepOptions step_options(const Recipe& recipe, const ModelConfig& config, DType dtype) {
  const TrainingOptions& t = recipe.training;
  StepOptions options;
  options.config = &config;
  options.dtype = dtype;
  options.adamw = {t.adam_beta1, t.adam_beta2, t.adam_epsilon, t.weight_decay};
  options.max_grad_norm = t.max_grad_norm;
  options.remat = t.remat;
  options.scan_layers = recipe.scan_layers;
  return options;
}

void set_variables(StepOptions& options, const ModelState& state) {
  options.lora = state.adapter.sites;
  options.parameters = state.parameters;
  options.packed = state.packed;
  options.adapters = state.adapter.variables;
}

StepOptions adapter_step_options(const ModelState& state) {
  StepOptions options;
  options.config = &state.config;
  set_variables(options, state);
  for (const VariableSpec& v : options.adapters) options.trained.push_back(v.name);
  std::sort(options.trained.begin(), options.trained.end());
  return options;
}

std::vector<VariableSpec> state_variables(const StepOptions& options) {
  std::vector<VariableSpec> variables = options.parameters;
  variables.insert(variables.end(), options.adapters.begin(), options.adapters.end());
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < variables.size(); ++i) places[variables[i].name] = i;
  for (const std::string& name : options.trained) {
    VariableSpec moment = variables.at(places.at(name));
    moment.kind = VariableKind::kOptimizer;
    moment.dtype = DType::kF32;
    for (const std::string& moment_name : {moment1_name(name), moment2_name(name)}) {
      moment.name = moment_name;
      variables.push_back(moment);
    }
  }
  return variables;
}

std::vector<VariableSpec> batch_variables(const BatchShape& shape) {
  const Shape tokens{shape.micro_batches, shape.batch_size, shape.sequence_length};
  const Shape targets{shape.micro_batches, shape.targets};
  const std::vector<std::string> token_axes{"", "activation_batch", "activation_length"};
  const std::vector<std::string> target_axes{"", "activation_batch"};
  const auto data = [](const char* name, DType dtype, const Shape& s,
                       const std::vector<std::string>& axes) {
    return VariableSpec{name, VariableKind::kData, dtype, s, axes};
  };
  return {data(step_input::kInputIds, DType::kS32, tokens, token_axes),
          data(step_input::kSegments, DType::kS32, tokens, token_axes),
          data(step_input::kPositions, DType::kS32, tokens, token_axes),
          data(step_input::kTargetPositions, DType::kS32, targets, target_axes),
          data(step_input::kTargets, DType::kS32, targets, target_axes),
          data(step_input::kWeights, DType::kF32, targets, target_axes)};
}

}  // namespace graft
