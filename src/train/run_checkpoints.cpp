#include "train/run_checkpoints.h"

#include <set>

#include "base/log.h"
#include "checkpoint/checkpoint_folder.h"
#include "cpu/kernel.h"
#include "train/recipe_difference.h"
#include "train/step.h"

namespace graft {
namespace {

// Every variable that a checkpoint might hold. The frozen base is given as its file stores it.
std::vector<StateVariable> state_variables(const PreparedRun& run) {
  std::vector<StateVariable> variables;
  const auto& tensors = run.state.tensors;
  const VariableKind trained = run.full() ? VariableKind::kParam : VariableKind::kAdapter;
  for (const std::string& name : run.trained) {
    variables.push_back({name, trained, true, tensors.at(name)});
    for (const std::string& moment : {moment1_name(name), moment2_name(name)}) {
      variables.push_back({moment, VariableKind::kOptimizer, true, tensors.at(moment)});
    }
  }
  if (run.recipe.training.save_base) {
    const BaseWeights base = BaseWeights::open(run.recipe.model, run.state.config);
    const std::set<std::string> known(run.trained.begin(), run.trained.end());
    for (const VariableSpec& v : base.parameters()) {
      if (known.contains(v.name)) continue;
      variables.push_back({v.name, VariableKind::kParam, false, base.load(v.name, v.dtype)});
    }
  }
  // Random numbers are counted, not drawn: these two are their whole state.
  const auto seed = static_cast<uint64_t>(run.recipe.training.seed);
  const std::vector<uint32_t> words = {static_cast<uint32_t>(seed),
                                       static_cast<uint32_t>(seed >> 32)};
  variables.push_back({"seed", VariableKind::kRng, false, Tensor::of<uint32_t>({2}, words)});
  variables.push_back(
      {"step", VariableKind::kRng, false, Tensor::of<int64_t>({}, {run.progress.step})});
  return variables;
}

}  // namespace

RunCheckpoints::RunCheckpoints(PreparedRun& run, ScheduleLength length)
    : run_(run),
      length_(length),
      writer_(CheckpointFolder::of_run(run.output).path(), run.recipe.training.save_total_limit) {
  if (run.resume.checkpoint && !run.resume.elsewhere) saved_ = run.progress.step;
}

bool RunCheckpoints::due(int64_t step) const {
  const int64_t every = run_.recipe.training.save_steps;
  return every > 0 && step % every == 0 && step < run_.total_steps;
}

CheckpointContents RunCheckpoints::contents() const {
  run_.runner->fetch();
  CheckpointContents contents;
  Manifest& m = contents.manifest;
  m.graft_version = graft_version();
  m.recipe_sha256 = recipe_hash(run_.recipe);
  m.progress = run_.progress;
  m.data = run_.data_identity;
  const TrainingOptions& t = run_.recipe.training;
  m.schedule = {std::string(schedule_name(t.lr_scheduler_type)), *t.learning_rate,
                length_.warmup_steps, length_.total_steps};
  m.seed = static_cast<uint64_t>(t.seed);
  m.compute = {run_.recipe.compute.executor, std::string(cpu::instruction_set()),
               std::string(dtype_name(run_.compute.dtype))};
  const StateParts parts = split_state(state_variables(run_), {.save_base = t.save_base});
  contents.tensors = checkpoint_tensor_files(parts, run_.state.adapter);
  if (!run_.full()) {
    contents.texts.push_back(
        {"adapter_config.json", format_adapter_config(run_.saved_adapter_config())});
  }
  contents.texts.push_back({"recipe.resolved.yaml", format_recipe(run_.recipe)});
  return contents;
}

// In the thread that writes: the base's files may still be being read.
void RunCheckpoints::add_base(CheckpointContents& contents) const {
  run_.require_expected_base();
  const BaseIdentity& base = run_.base->get();
  contents.manifest.base_path = base.path;
  contents.manifest.base_header_sha256 = base.header_sha256;
  contents.texts.push_back({"base.json", format_base_identity(base)});
}

void RunCheckpoints::save() {
  writer_.raise_failure();
  if (writer_.busy()) info("the checkpoint before this one is still being written: waiting for it");
  writer_.save(contents(), [this](CheckpointContents& c) { add_base(c); });
  saved_ = run_.progress.step;
}

std::filesystem::path RunCheckpoints::save_last() {
  writer_.finish();
  if (saved_ == run_.progress.step) {
    writer_.remove_old();  // which a crash may have kept the run from doing
    return CheckpointFolder::of_run(run_.output).place_of(saved_);
  }
  if (!run_.base->ready()) info("waiting for the checksums of the base model's files");
  const auto folder = writer_.save_now(contents(), [this](CheckpointContents& c) { add_base(c); });
  saved_ = run_.progress.step;
  return folder;
}

}  // namespace graft
