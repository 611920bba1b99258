#pragma once
// A training run from recipe to adapter: load, audit, train, evaluate, save.
//
//   Recipe recipe = load_recipe("recipe.yaml");
//   TrainingSummary summary = run_training(recipe);
//
// Writes into output_dir: recipe.resolved.yaml, audit.json, metrics.jsonl, a TensorBoard event
// file, checkpoints/, and at the end adapter/ (method lora) or model/ (method full) and
// summary.json. Goes on from a checkpoint where training.resume says so. Raises Error where the
// audit refuses, where a loss or norm is not finite, where nothing was learned, and where a file
// cannot be written.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "train/recipe.h"

namespace graft {

struct TrainingSummary {
  int64_t steps = 0;
  double final_loss = 0;  // of the last logged interval
  std::optional<double> eval_loss_before, eval_loss_after;
  double tokens_per_second = 0;  // over the run, without padding
  int64_t planned_peak_bytes = 0, measured_peak_bytes = 0;
  std::filesystem::path result;  // the adapter's or the model's folder; empty: stopped before
};

struct TrainingControl {
  // Looked at after every step; once true, the run saves a checkpoint and ends. Then `stopped_by`
  // says what asked for it: "SIGTERM".
  std::function<bool()> stop_requested;
  std::function<std::string()> stopped_by;
  bool force_resume = false;  // go on though the recipe differs in what decides the numbers
};

TrainingSummary run_training(Recipe recipe, const TrainingControl& control = {});

}  // namespace graft
