#pragma once
// Everything before step 0: what a recipe names is loaded, checked, planned and compiled, and the
// audit of it printed and saved.
//
//   std::unique_ptr<PreparedRun> run = prepare_run(load_recipe("recipe.yaml"));
//   run->runner->train(run->stream->next(), ...);

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batches.h"
#include "data/dataset.h"
#include "text/text_model.h"
#include "train/audit.h"
#include "train/compute.h"
#include "train/recipe.h"
#include "train/runner.h"
#include "train/state.h"

namespace graft {

// Stays where it is made: the runner refers to the state.
struct PreparedRun {
  Recipe recipe;  // resolved
  std::filesystem::path output;
  Compute compute;
  Audit audit;
  ModelState state;                            // with the moments of what is trained
  std::vector<std::string> trained, no_decay;  // names, sorted
  std::optional<TextModel> text;               // none: a model without tokenizer, on tokenized data
  Dataset train_data;
  std::optional<Dataset> eval_data;
  std::optional<EvaluationBatches> eval_batches;
  BatchOptions batches;
  std::optional<BatchStream> stream;  // at its beginning
  int64_t total_steps = 0;
  std::optional<StepRunner> runner;  // compiled for the shapes to come, memory reserved
  double gemm_limit = 0;             // FLOP/s
  int64_t planned_peak = 0;          // bytes

  bool full() const { return recipe.training.method == TrainingMethod::kFull; }
  // Targets by name, also where the recipe said all-linear: other tools count other layers as
  // linear.
  AdapterConfig saved_adapter_config() const;
};

// Raises Error where the audit refuses the run.
std::unique_ptr<PreparedRun> prepare_run(Recipe recipe);

}  // namespace graft
