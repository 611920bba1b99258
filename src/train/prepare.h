#pragma once
// Everything before step 0: what a recipe names is loaded, checked, planned and compiled, and the
// audit of it printed and saved.
//
//   std::unique_ptr<PreparedRun> run = prepare_run(recipe, plan_resume(recipe, false));
//   run->runner->train(run->stream->next(), ...);

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/base_identity.h"
#include "checkpoint/manifest.h"
#include "data/batches.h"
#include "data/dataset.h"
#include "text/text_model.h"
#include "train/audit.h"
#include "train/compute.h"
#include "train/recipe.h"
#include "train/resume.h"
#include "train/runner.h"
#include "train/state.h"

namespace graft {

// Stays where it is made: the runner refers to the state.
struct PreparedRun {
  Recipe recipe;  // resolved
  std::filesystem::path output;
  Compute compute;
  Audit audit;
  ResumePlan resume;
  RunProgress progress;                        // as far as the run has come
  std::unique_ptr<BaseIdentityTask> base;      // being computed
  std::optional<BaseIdentity> expected_base;   // of a checkpoint that the run goes on from
  ModelState state;                            // with the moments of what is trained
  std::vector<std::string> trained, no_decay;  // names, sorted
  std::optional<TextModel> text;               // none: a model without tokenizer, on tokenized data
  Dataset train_data;
  std::optional<Dataset> eval_data;
  std::optional<EvaluationBatches> eval_batches;
  BatchOptions batches;
  std::optional<BatchStream> stream;  // at its beginning, or where the run goes on
  DataIdentity data_identity;
  int64_t total_steps = 0;
  std::optional<StepRunner> runner;  // compiled for the shapes to come, memory reserved
  double gemm_limit = 0;             // FLOP/s
  int64_t planned_peak = 0;          // bytes

  // Waits until the base's files have been read; raises Error where the run goes on from a
  // checkpoint of another base model. Safe to call from several threads.
  void require_expected_base() const;

  bool full() const { return recipe.training.method == TrainingMethod::kFull; }
  // Targets by name, also where the recipe said all-linear: other tools count other layers as
  // linear.
  AdapterConfig saved_adapter_config() const;
};

// Raises Error where the audit refuses the run.
std::unique_ptr<PreparedRun> prepare_run(Recipe recipe, ResumePlan resume = {});

}  // namespace graft
