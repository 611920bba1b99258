#include "train/trainer.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>

#include "base/file.h"
#include "base/log.h"
#include "train/metrics.h"
#include "train/model_folder.h"
#include "train/prepare.h"
#include "train/process.h"
#include "train/progress.h"
#include "train/schedule.h"
#include "train/tensorboard.h"

namespace graft {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double megabytes(double bytes) { return bytes / 1e6; }

class Loop {
 public:
  explicit Loop(PreparedRun& run) : run_(run) {}

  TrainingSummary execute() {
    write_file_atomically(run_.output / "recipe.resolved.yaml", format_recipe(run_.recipe));
    train();
    return finish();
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

  double evaluate(int64_t step) {
    EvaluationResult result;
    for (int64_t i = 0; i < run_.eval_batches->size(); ++i)
      run_.runner->evaluate(run_.eval_batches->get(i), result);
    metrics_->write(EvalMetrics{step, result.loss(), result.trained_tokens});
    events_->write(step, {{"eval/loss", result.loss()}});
    progress_->note(fmt::format("step {}: eval loss {:.4f} over {} tokens", step, result.loss(),
                                result.trained_tokens));
    return result.loss();
  }

  void train() {
    remove_old_events();
    metrics_.emplace(run_.output / "metrics.jsonl");
    events_.emplace(run_.output);
    progress_.emplace(
        run_.total_steps,
        isatty(STDERR_FILENO) ? Progress::Style::kTerminal : Progress::Style::kPlain,
        [](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); });
    if (run_.eval_batches) summary_.eval_loss_before = evaluate(0);
    const TrainingOptions& t = run_.recipe.training;
    const ScheduleLength length = schedule_length(t, run_.total_steps);
    start_ = Clock::now();
    for (int64_t step = 1; step <= run_.total_steps; ++step) {
      const double rate = *t.learning_rate * schedule_factor(t.lr_scheduler_type, step - 1, length);
      take_step(step, rate);
      const bool evaluates = t.eval_steps > 0 && step % t.eval_steps == 0;
      if (run_.eval_batches && (evaluates || step == run_.total_steps)) {
        const Clock::time_point before = Clock::now();
        summary_.eval_loss_after = evaluate(step);
        start_ += Clock::now() - before;  // evaluation is not training time
      }
    }
    progress_->finish();
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
    tokens_ += batch.tokens;
    trained_tokens_ += batch.trained_tokens;
    interval_.loss += result.loss * static_cast<double>(batch.trained_tokens);
    interval_.trained_tokens += batch.trained_tokens;
    interval_.tokens += batch.tokens;
    interval_.seconds += seconds;
    interval_.flops += run_.runner->gemm_flops(shape_of(batch));
    ++interval_.steps;
    summary_.steps = step;
    if (step % t.logging_steps != 0 && step != run_.total_steps && !statistics) return;
    StepMetrics m;
    m.step = step;
    m.epoch = run_.stream->epochs_done();
    m.loss = interval_.loss / static_cast<double>(interval_.trained_tokens);
    m.grad_norm = result.grad_norm;
    m.learning_rate = rate;
    m.tokens = tokens_;
    m.trained_tokens = trained_tokens_;
    m.tokens_per_second = static_cast<double>(interval_.tokens) / interval_.seconds;
    m.step_seconds = interval_.seconds / static_cast<double>(interval_.steps);
    m.peak_rss_bytes = peak_resident_bytes();
    m.gemm_share = interval_.flops / interval_.seconds / run_.gemm_limit;
    m.stats = result.statistics;
    metrics_->write(m);
    events_->write(step, {{"train/loss", m.loss},
                          {"train/grad_norm", m.grad_norm},
                          {"train/learning_rate", m.learning_rate},
                          {"train/tokens_per_second", m.tokens_per_second}});
    progress_->update(m, seconds_since(start_));
    summary_.final_loss = m.loss;
    interval_ = {};
  }

  [[noreturn]] void stop_not_finite(int64_t step, const StepResult& result, const Batch& batch) {
    progress_->finish();
    std::string tensors;
    for (size_t i = 0; i < run_.trained.size() && tensors.size() < 200; ++i) {
      if (std::isfinite(result.squared_norms[i])) continue;
      tensors += (tensors.empty() ? "" : ", ") + run_.trained[i];
    }
    throw Error(
        fmt::format(
            "step {}: the loss is {} and the gradient norm {}; not finite: {}; the batch holds {} "
            "of {}; the weights are as they were before this step",
            step, result.loss, result.grad_norm,
            tensors.empty() ? "the loss or the sum of norms" : "gradients of " + tensors,
            list_lines(batch.lines, run_.train_data.unit), run_.train_data.name),
        "", "lower training.learning_rate, or look at these rows");
  }

  TrainingSummary finish() {
    if (run_.full()) {
      summary_.result = run_.output / "model";
      save_model_folder(summary_.result, run_.state, run_.text ? &*run_.text : nullptr,
                        [&](const std::string& name) { return run_.state.tensors.at(name); });
    } else {
      summary_.result = run_.output / "adapter";
      save_adapter(summary_.result, run_.saved_adapter_config(), run_.state.adapter,
                   run_.state.tensors);
      load_adapter(summary_.result, run_.state.adapter);  // it is whole, finite, and loads
    }
    const double elapsed = seconds_since(start_);
    summary_.tokens_per_second = static_cast<double>(tokens_) / elapsed;
    summary_.planned_peak_bytes = run_.planned_peak;
    summary_.measured_peak_bytes = peak_resident_bytes();
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
    return summary_;
  }

  struct Interval {
    double loss = 0, seconds = 0, flops = 0;
    int64_t trained_tokens = 0, tokens = 0, steps = 0;
  };

  PreparedRun& run_;
  std::optional<MetricsWriter> metrics_;
  std::optional<TensorBoardWriter> events_;
  std::optional<Progress> progress_;
  Clock::time_point start_;
  int64_t tokens_ = 0, trained_tokens_ = 0;
  Interval interval_;
  TrainingSummary summary_;
};

}  // namespace

TrainingSummary run_training(Recipe recipe) {
  const std::unique_ptr<PreparedRun> run = prepare_run(std::move(recipe));
  return Loop(*run).execute();
}

}  // namespace graft
