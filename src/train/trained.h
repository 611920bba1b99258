#pragma once
// What a recipe trains, and the options of its step: decided by the recipe and the model's
// configuration alone, before any weight is read.

#include <string>
#include <vector>

#include "adapters/targets.h"
#include "train/recipe.h"
#include "train/state.h"
#include "train/step.h"

namespace graft {

struct TrainedParameters {
  std::vector<std::string> trained;    // names, sorted
  std::vector<std::string> no_decay;   // of those, exempt from weight decay
  std::vector<std::string> unmatched;  // expressions of training.trainable that match nothing
};

// method full: the parameters that training.trainable names, or all.
TrainedParameters choose_trained_parameters(const TrainingOptions& training,
                                            const std::vector<VariableSpec>& parameters);

// Everything but the variables (parameters, adapters, trained, no_decay). Keeps a pointer to
// `config`.
StepOptions step_options(const Recipe& recipe, const ModelConfig& config, DType dtype);

// Fills in what a loaded model gives: its parameters as they are held, and its adapter.
void set_variables(StepOptions& options, const ModelState& state);
// The options of a step that trains the adapter of a loaded model, all others at their defaults.
// Keeps a pointer to the state's configuration.
StepOptions adapter_step_options(const ModelState& state);

// The variables that a step keeps between runs: parameters, adapters, and the moments of what is
// trained, each with its logical axes (a moment's are its variable's).
std::vector<VariableSpec> state_variables(const StepOptions& options);
// The step's batch, [M, B, S] and [M, N]: rows are split as activation_batch.
std::vector<VariableSpec> batch_variables(const BatchShape& shape);

}  // namespace graft
