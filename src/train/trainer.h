#pragma once
// A training run from recipe to adapter: load, audit, train, evaluate, save.
//
//   Recipe recipe = load_recipe("recipe.yaml");
//   TrainingSummary summary = run_training(recipe);
//
// Writes into output_dir: recipe.resolved.yaml, audit.json, metrics.jsonl, a TensorBoard event
// file, and at the end adapter/ (method lora) or model/ (method full). Raises Error where the audit
// refuses, where a loss or norm is not finite, and where a file cannot be written.

#include <cstdint>
#include <filesystem>
#include <optional>

#include "train/recipe.h"

namespace graft {

struct TrainingSummary {
  int64_t steps = 0;
  double final_loss = 0;  // of the last logged interval
  std::optional<double> eval_loss_before, eval_loss_after;
  double tokens_per_second = 0;  // over the run, without padding
  int64_t planned_peak_bytes = 0, measured_peak_bytes = 0;
  std::filesystem::path result;  // the adapter's or the model's folder
};

TrainingSummary run_training(Recipe recipe);

}  // namespace graft
