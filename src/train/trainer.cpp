#include "train/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/disk.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/checkpoint_folder.h"
#include "cpu/isa.h"
#include "train/export.h"
#include "train/metrics.h"
#include "train/model_folder.h"
#include "train/prepare.h"
#include "train/process.h"
#include "train/progress.h"
#include "train/run_checkpoints.h"
#include "train/schedule.h"
#include "train/tensorboard.h"

namespace graft {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A nan has a sign, which nobody wants to read.
std::string in_words(double value) { return std::isnan(value) ? "nan" : fmt::format("{}", value); }

double megabytes(double bytes) { return bytes / 1e6; }

// The name of a run's result in its folder.
std::string result_name(const PreparedRun& run) { return run.full() ? "model" : "adapter"; }

class Loop {
 public:
  Loop(PreparedRun& run, const TrainingControl& control)
      : run_(run),
        control_(control),
        progress_(run.progress),
        length_(schedule_length(run.recipe.training, run.total_steps)),
        checkpoints_(run, length_) {}

  TrainingSummary execute() {
    if (run_.resume.overwrite) remove_run(run_.output);
    write_file_atomically(run_.output / "recipe.resolved.yaml", format_recipe(run_.recipe));
    open_logs();
    train();
    return stopped_ ? stop() : finish();
  }

 private:
  // Event files of an earlier run in the same folder would be drawn together with this one's.
  void remove_old_events() const {
    for (const auto& entry : std::filesystem::directory_iterator(run_.output)) {
      if (entry.path().filename().string().starts_with("events.out.tfevents.")) {
        std::filesystem::remove(entry.path());
      }
    }
  }

  // Metrics go on at the step from which the run goes on, or begin anew.
  void open_logs() {
    const std::filesystem::path metrics = run_.output / "metrics.jsonl";
    const bool goes_on = run_.resume.checkpoint.has_value();
    if (goes_on && run_.resume.elsewhere) take_metrics_from(run_.resume.checkpoint->folder);
    if (goes_on) cut_metrics(metrics, progress_.step);
    else remove_old_events();
    disk::remove_all(run_.output / "summary.json");  // until this run has one of its own
    const int64_t superseded =
        CheckpointFolder::of_run(run_.output).supersede_after(goes_on ? progress_.step : -1);
    if (superseded > 0) {
      info("{} checkpoints of later steps are set aside as checkpoints/superseded-step-...",
           superseded);
    }
    metrics_.emplace(metrics, goes_on ? AppendFile::Begin::kContinue : AppendFile::Begin::kAnew);
    events_.emplace(run_.output, progress_.step);
    bar_.emplace(run_.total_steps,
                 isatty(STDERR_FILENO) ? Progress::Style::kTerminal : Progress::Style::kPlain,
                 [](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); });
  }

  // Of a run whose checkpoint this one goes on from: <run>/checkpoints/step-...
  void take_metrics_from(const std::filesystem::path& checkpoint) const {
    const std::filesystem::path source =
        std::filesystem::absolute(checkpoint).parent_path().parent_path() / "metrics.jsonl";
    const bool there = std::filesystem::exists(source);
    write_file_atomically(run_.output / "metrics.jsonl", there ? read_text_file(source) : "");
  }

  void evaluate() {
    EvaluationResult result;
    for (int64_t i = 0; i < run_.eval_batches->size(); ++i)
      run_.runner->evaluate(run_.eval_batches->get(i), result);
    const Evaluation evaluation{progress_.step, result.loss(), result.trained_tokens};
    metrics_->write(EvalMetrics{evaluation.step, evaluation.loss, evaluation.tokens});
    events_->write(evaluation.step, {{"eval/loss", evaluation.loss}});
    bar_->note(fmt::format("step {}: eval loss {:.4f} over {} tokens", evaluation.step,
                           evaluation.loss, evaluation.tokens));
    if (!progress_.first_evaluation) progress_.first_evaluation = evaluation;
    const auto& best = progress_.best_evaluation;
    if (!best || evaluation.loss < best->loss) progress_.best_evaluation = evaluation;
    progress_.last_evaluation = evaluation;
  }

  void train() {
    const TrainingOptions& t = run_.recipe.training;
    if (run_.eval_batches && progress_.step == 0) evaluate();
    start_ = Clock::now();
    for (stopped_ = stop_requested(); progress_.step < run_.total_steps && !stopped_;
         stopped_ = stop_requested()) {
      const double factor = schedule_factor(t.lr_scheduler_type, progress_.step, length_);
      take_step(progress_.step + 1, *t.learning_rate * factor);
      const bool evaluates = t.eval_steps > 0 && progress_.step % t.eval_steps == 0;
      if (run_.eval_batches && (evaluates || progress_.step == run_.total_steps)) {
        const Clock::time_point before = Clock::now();
        evaluate();
        start_ += Clock::now() - before;  // evaluation is not training time
      }
      check_base();
      checkpoints_.raise_failure();
      if (checkpoints_.due(progress_.step)) save();
    }
    bar_->finish();
    stopped_ = stopped_ && progress_.step < run_.total_steps;
  }

  bool stop_requested() const { return control_.stop_requested && control_.stop_requested(); }

  // As soon as the base's files have been read, once.
  void check_base() {
    if (base_checked_ || !run_.base->ready()) return;
    run_.require_expected_base();
    base_checked_ = true;
  }

  // The lines of metrics are on the disk before the checkpoint that they lead to.
  void save() {
    metrics_->sync();
    checkpoints_.save();
  }

  // One step, and its line in the log when it is due.
  void take_step(int64_t step, double rate) {
    const TrainingOptions& t = run_.recipe.training;
    const Batch batch = run_.stream->next();
    const bool statistics = t.stats_steps > 0 && step % t.stats_steps == 0;
    const Clock::time_point before = Clock::now();
    const StepResult result =
        run_.runner->train(batch, {rate, step, static_cast<uint64_t>(t.seed)}, statistics);
    const double seconds = seconds_since(before);
    if (!result.finite) stop_not_finite(step, result, batch);
    progress_.step = step;
    progress_.position = run_.stream->position();
    progress_.tokens += batch.tokens;
    progress_.trained_tokens += batch.trained_tokens;
    new_tokens_ += batch.tokens;
    MetricsInterval& interval = progress_.interval;
    interval.loss += result.loss * static_cast<double>(batch.trained_tokens);
    interval.trained_tokens += batch.trained_tokens;
    interval.tokens += batch.tokens;
    interval.seconds += seconds;
    interval.flops += run_.runner->gemm_flops(shape_of(batch));
    ++interval.steps;
    if (step % t.logging_steps == 0 || step == run_.total_steps || statistics) {
      report(result, rate);
    }
  }

  void report(const StepResult& result, double rate) {
    const MetricsInterval& interval = progress_.interval;
    StepMetrics m;
    m.step = progress_.step;
    m.epoch = run_.stream->epochs_done();
    m.loss = interval.loss / static_cast<double>(interval.trained_tokens);
    m.grad_norm = result.grad_norm;
    m.learning_rate = rate;
    m.tokens = progress_.tokens;
    m.trained_tokens = progress_.trained_tokens;
    m.tokens_per_second = static_cast<double>(interval.tokens) / interval.seconds;
    m.step_seconds = interval.seconds / static_cast<double>(interval.steps);
    m.peak_rss_bytes = peak_resident_bytes();
    // A step that is faster than the limit was found to be proves that something disturbed the
    // measurement.
    const double speed = interval.flops / interval.seconds;
    run_.gemm_limit = std::max(run_.gemm_limit, speed);
    m.gemm_share = speed / run_.gemm_limit;
    m.stats = result.statistics;
    metrics_->write(m);
    events_->write(m.step, {{"train/loss", m.loss},
                            {"train/grad_norm", m.grad_norm},
                            {"train/learning_rate", m.learning_rate},
                            {"train/tokens_per_second", m.tokens_per_second}});
    bar_->update(m, seconds_since(start_));
    progress_.loss = m.loss;
    progress_.interval = {};
  }

  [[noreturn]] void stop_not_finite(int64_t step, const StepResult& result, const Batch& batch) {
    bar_->finish();
    std::string tensors;
    for (size_t i = 0; i < run_.trained.size() && tensors.size() < 200; ++i) {
      if (std::isfinite(result.squared_norms[i])) continue;
      tensors += (tensors.empty() ? "" : ", ") + run_.trained[i];
    }
    const std::string damaged = describe_not_finite(run_.state);
    throw Error(
        fmt::format(
            "step {}: the loss is {} and the gradient norm {}; not finite: {}; the batch holds {} "
            "of {}; the weights are as they were before this step",
            step, in_words(result.loss), in_words(result.grad_norm),
            tensors.empty() ? "the loss or the sum of norms" : "gradients of " + tensors,
            list_lines(batch.lines, run_.train_data.unit), run_.train_data.name),
        "", damaged.empty() ? "lower training.learning_rate, or look at these rows" : damaged);
  }

  // Ends early, so that the same command goes on later.
  TrainingSummary stop() {
    fill_summary();
    if (progress_.step == 0) {
      info("stopped by {} before the first step; there is nothing to save", control_.stopped_by());
      return summary_;
    }
    metrics_->sync();
    const std::filesystem::path saved = checkpoints_.save_last();
    info("stopped by {} after step {} of {}; saved {}; the same command goes on from there",
         control_.stopped_by(), progress_.step, run_.total_steps, saved.string());
    return summary_;
  }

  TrainingSummary finish() {
    metrics_->sync();
    checkpoints_.save_last();
    run_.require_expected_base();
    write_result();
    fill_summary();
    const double elapsed = seconds_since(start_);
    summary_.tokens_per_second = static_cast<double>(new_tokens_) / elapsed;
    info("trained {} steps in {}: {:.0f} tokens/s; peak memory {:.0f} MB, predicted {:.0f} MB",
         summary_.steps, format_duration(elapsed), summary_.tokens_per_second,
         megabytes(static_cast<double>(summary_.measured_peak_bytes)),
         megabytes(static_cast<double>(run_.planned_peak)));
    if (summary_.eval_loss_before && summary_.eval_loss_after) {
      const double before = *summary_.eval_loss_before, after = *summary_.eval_loss_after;
      info("evaluation loss {:.4f} before, {:.4f} after ({:+.1f}%)", before, after,
           100 * (after - before) / before);
      if (after > before) warn("the evaluation loss is worse than at the start");
    }
    info("wrote {}", summary_.result.string());
    if (run_.text && run_.text->chat_template) {
      info("talk with it: graft chat --model {}",
           run_.full() ? summary_.result.string()
                       : run_.recipe.model + " --adapter " + summary_.result.string());
    }
    return summary_;
  }

  void fill_summary() {
    summary_.steps = progress_.step;
    summary_.final_loss = progress_.loss;
    if (progress_.first_evaluation) summary_.eval_loss_before = progress_.first_evaluation->loss;
    // An evaluation before the first step says nothing of what came after.
    if (progress_.last_evaluation && progress_.last_evaluation->step > 0) {
      summary_.eval_loss_after = progress_.last_evaluation->loss;
    }
    summary_.planned_peak_bytes = run_.planned_peak;
    summary_.measured_peak_bytes = peak_resident_bytes();
  }

  // Written aside and put in place as a whole; summary.json says that it is there.
  void write_result() {
    run_.runner->fetch();
    const std::filesystem::path unfinished = run_.output / (kTemporaryPrefix + result_name(run_));
    disk::remove_all(unfinished);
    if (run_.full()) {
      save_model_folder(unfinished, run_.state, run_.text ? &*run_.text : nullptr,
                        [&](const std::string& name) { return run_.state.tensors.at(name); });
    } else {
      require_learned();
      save_adapter(unfinished, run_.saved_adapter_config(), run_.state.adapter, run_.state.tensors);
      load_adapter(unfinished, run_.state.adapter);  // it is whole, finite, and loads
    }
    summary_.result = run_.output / result_name(run_);
    disk::replace_folder(unfinished, summary_.result);
    write_file_atomically(run_.output / "summary.json", summary_json());
  }

  // An adapter whose every B is zero changes nothing.
  void require_learned() const {
    for (const VariableSpec& v : run_.state.adapter.variables) {
      if (!v.name.ends_with(".lora_B")) continue;
      const Tensor& b = run_.state.tensors.at(v.name);
      const std::span<const float> values = b.span<float>();
      if (std::any_of(values.begin(), values.end(), [](float x) { return x != 0; })) return;
    }
    throw Error(fmt::format("after {} steps every lora_B is still zero: the adapter changes "
                            "nothing, and is not saved as a result",
                            progress_.step),
                run_.output.string(),
                "the learning rate was 0 in every step (a warm-up begins at 0), or no gradient "
                "reached the adapter; take more steps, or a shorter training.warmup_steps");
  }

  std::string summary_json() const {
    nlohmann::ordered_json j = {{"steps", progress_.step},
                                {"tokens", progress_.tokens},
                                {"trained_tokens", progress_.trained_tokens},
                                {"loss", progress_.loss},
                                {"result", result_name(run_)}};
    const auto add = [&](const char* name, const std::optional<Evaluation>& e) {
      if (e) j[name] = {{"step", e->step}, {"eval_loss", e->loss}, {"eval_tokens", e->tokens}};
    };
    add("first_evaluation", progress_.first_evaluation);
    add("best_evaluation", progress_.best_evaluation);
    add("last_evaluation", progress_.last_evaluation);
    return j.dump(2) + "\n";
  }

  PreparedRun& run_;
  const TrainingControl& control_;
  RunProgress& progress_;  // of the run
  ScheduleLength length_;
  RunCheckpoints checkpoints_;
  std::optional<MetricsWriter> metrics_;
  std::optional<TensorBoardWriter> events_;
  std::optional<Progress> bar_;
  Clock::time_point start_;
  int64_t new_tokens_ = 0;  // of this process
  bool stopped_ = false, base_checked_ = false;
  TrainingSummary summary_;
};

// What a run says that has nothing left to do.
TrainingSummary finished_summary(const Recipe& recipe, const ResumePlan& plan) {
  const RunProgress& p = plan.checkpoint->manifest.progress;
  TrainingSummary summary;
  summary.steps = p.step;
  summary.final_loss = p.loss;
  if (p.first_evaluation) summary.eval_loss_before = p.first_evaluation->loss;
  if (p.last_evaluation) summary.eval_loss_after = p.last_evaluation->loss;
  const bool full = recipe.training.method == TrainingMethod::kFull;
  summary.result = std::filesystem::path(recipe.output_dir) / (full ? "model" : "adapter");
  info("this run is finished: {} steps, result in {}", p.step, summary.result.string());
  info(
      "for more, raise training.max_steps or training.num_train_epochs; to begin anew, give "
      "training.resume=never training.overwrite_output_dir=true");
  return summary;
}

// What `export` asks for, once there is something to export.
void export_result(const std::filesystem::path& output, const std::vector<std::string>& formats) {
  for (const std::string& format : formats) {
    export_run(output, {.format = *find_export_format(format)});
  }
}

}  // namespace

TrainingSummary run_training(Recipe recipe, const TrainingControl& control) {
  require_keys(recipe, {"model", "output_dir", "data.train"});
  const InstructionSet isa = recipe.compute.isa;
  if (isa != InstructionSet::kAuto) cpu::pin_instruction_set(instruction_set_name(isa));
  const RunLock lock(recipe.output_dir);
  ResumePlan plan = plan_resume(recipe, control.force_resume);
  const std::filesystem::path output = recipe.output_dir;
  std::vector<std::string> exports = recipe.exports;
  if (plan.finished) {
    // What an earlier end did not come to, or was not asked for then.
    std::erase_if(exports, [&](const std::string& format) {
      return std::filesystem::exists(output / "export" / format);
    });
    const TrainingSummary summary = finished_summary(recipe, plan);
    export_result(output, exports);
    return summary;
  }
  std::unique_ptr<PreparedRun> run = prepare_run(std::move(recipe), std::move(plan));
  const TrainingSummary summary = Loop(*run, control).execute();
  run.reset();  // exports load the model for themselves
  if (!summary.result.empty()) export_result(output, exports);
  return summary;
}

}  // namespace graft
