#include "train/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "base/file.h"
#include "base/log.h"
#include "data/dataset.h"
#include "models/layout.h"
#include "text/text_model.h"
#include "train/audit.h"
#include "train/compute.h"
#include "train/data_audit.h"
#include "train/flops.h"
#include "train/metrics.h"
#include "train/model_folder.h"
#include "train/process.h"
#include "train/progress.h"
#include "train/runner.h"
#include "train/schedule.h"
#include "train/state.h"
#include "train/tensorboard.h"

namespace graft {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double megabytes(double bytes) { return bytes / 1e6; }

// How many steps ahead the shapes of batches are looked up, to plan for the largest.
constexpr int64_t kShapeHorizon = 20000;
// Programs compiled before step 0; further shapes are compiled when they are first met.
constexpr size_t kCompiledAhead = 4;

class Run {
 public:
  explicit Run(Recipe recipe) : recipe_(std::move(recipe)) {}

  TrainingSummary execute() {
    resolve_recipe(recipe_, today());
    output_ = recipe_.output_dir;
    compute_ = choose_compute(recipe_.compute, recipe_.model);
    load_model();
    try {
      load_data();
    } catch (const Error& error) {
      audit_.refuse("data", error);
      report_audit();
      throw;
    }
    check_before_start();
    prepare_programs();
    report_audit();
    refuse_unless_ok(audit_);
    write_file_atomically(output_ / "recipe.resolved.yaml", format_recipe(recipe_));
    train();
    return finish();
  }

 private:
  bool full() const { return recipe_.training.method == TrainingMethod::kFull; }

  void load_model() {
    // Trained weights are kept in f32; a frozen base in what is computed with.
    state_ = load_model_state(recipe_.model, full() ? DType::kF32 : compute_.dtype);
    for (const std::string& note : state_.notes) audit_.add("model", AuditStatus::kWarning, note);
    audit_.add("compute", AuditStatus::kOk,
               fmt::format("{}, {} threads", compute_.reason, compute_.threads));
    if (full()) {
      choose_trained_parameters();
    } else {
      attach();
      for (const VariableSpec& v : state_.adapter.variables) trained_.push_back(v.name);
    }
    std::sort(trained_.begin(), trained_.end());
    for (const std::string& name : trained_) {
      const Tensor& value = state_.tensors.at(name);
      audit_.trainable_parameters += value.elements();
      state_.tensors[moment1_name(name)] = Tensor::zeros(DType::kF32, value.shape());
      state_.tensors[moment2_name(name)] = Tensor::zeros(DType::kF32, value.shape());
    }
    audit_.total_parameters = state_.parameter_count() + state_.adapter_parameter_count();
  }

  // method full: the parameters that training.trainable names, or all. Each is made writable.
  void choose_trained_parameters() {
    std::vector<std::regex> patterns;
    std::vector<bool> matched(recipe_.training.trainable.size(), false);
    for (const std::string& text : recipe_.training.trainable) patterns.emplace_back(text);
    for (const VariableSpec& v : state_.parameters) {
      bool trained = patterns.empty();
      for (size_t i = 0; i < patterns.size(); ++i) {
        if (!std::regex_search(v.name, patterns[i])) continue;
        matched[i] = trained = true;
      }
      if (!trained) continue;
      trained_.push_back(v.name);
      state_.tensors[v.name] = state_.tensors.at(v.name).clone();
      const bool is_matrix = v.shape.size() > 1;
      if (!recipe_.training.decay_all && !is_matrix) no_decay_.push_back(v.name);
    }
    for (size_t i = 0; i < matched.size(); ++i) {
      if (matched[i]) continue;
      audit_.add("trainable", AuditStatus::kRefused,
                 fmt::format("\"{}\" in training.trainable matches no parameter; graft inspect lists them",
                             recipe_.training.trainable[i]));
    }
  }

  void attach() {
    AdapterConfig config = recipe_.lora;
    std::string start = "a fresh adapter (A uniform, B zero)";
    if (!recipe_.init_adapter.empty()) {
      config = initial_config();
      start = fmt::format("the adapter in {}", recipe_.init_adapter);
    }
    state_.adapter_config = config;
    state_.adapter = plan_adapters(config, all_linears(state_.config));
    audit_targets(audit_, state_.adapter.modules_per_target, state_.adapter.unmatched_targets,
                  state_.adapter.unmatched_patterns);
    if (!audit_.ok()) {
      report_audit();
      refuse_unless_ok(audit_);
    }
    if (recipe_.init_adapter.empty()) {
      for (const VariableSpec& v : state_.adapter.variables) {
        state_.tensors.insert_or_assign(
            v.name, initial_adapter_value(v, static_cast<uint64_t>(recipe_.training.seed)));
      }
    } else {
      for (auto& [name, tensor] : load_adapter(recipe_.init_adapter, state_.adapter)) {
        state_.tensors.insert_or_assign(name, std::move(tensor));
      }
    }
    audit_.add("start", AuditStatus::kOk, "training begins from " + start);
  }

  // The configuration of lora.init_adapter; what the recipe says besides must agree with it.
  AdapterConfig initial_config() const {
    AdapterConfig config = read_adapter_folder_config(recipe_.init_adapter);
    const auto agree = [&](const char* key, const auto& asked, const auto& found) {
      if (!recipe_.given(key) || asked == found) return;
      throw Error(fmt::format("{} is {} in the recipe and {} in {}", key, asked, found,
                              recipe_.init_adapter),
                  recipe_.where(key), "leave it out, or begin from another adapter");
    };
    agree("lora.r", recipe_.lora.r, config.r);
    agree("lora.lora_alpha", recipe_.lora.lora_alpha, config.lora_alpha);
    agree("lora.use_rslora", recipe_.lora.use_rslora, config.use_rslora);
    if (recipe_.given("lora.target_modules")) config.target_modules = recipe_.lora.target_modules;
    if (recipe_.given("lora.exclude_modules")) config.exclude_modules = recipe_.lora.exclude_modules;
    if (recipe_.given("lora.layers_to_transform")) {
      config.layers_to_transform = recipe_.lora.layers_to_transform;
    }
    if (recipe_.given("lora.rank_pattern")) config.rank_pattern = recipe_.lora.rank_pattern;
    if (recipe_.given("lora.alpha_pattern")) config.alpha_pattern = recipe_.lora.alpha_pattern;
    config.lora_dropout = recipe_.lora.lora_dropout;
    return config;
  }

  void load_data() {
    if (has_tokenizer(recipe_.model)) {
      text_ = load_text_model(recipe_.model, recipe_.data.chat_template);
    }
    const TextModel* text = text_ ? &*text_ : nullptr;
    train_data_ = load_dataset(recipe_.data.train, text, recipe_.data, compute_.threads);
    if (!recipe_.data.eval.empty()) {
      eval_data_ = load_dataset(recipe_.data.eval, text, recipe_.data, compute_.threads);
      eval_batches_.emplace(eval_data_->examples, recipe_.training.per_device_batch_size);
    }
    audit_data(audit_, train_data_, {text, state_.config.vocab_size});
    stream_options_.batch_size = recipe_.training.per_device_batch_size;
    stream_options_.accumulation = recipe_.training.gradient_accumulation_steps;
    stream_options_.max_length = recipe_.data.max_length;
    stream_options_.packing = recipe_.data.packing;
    stream_options_.shuffle = recipe_.training.shuffle;
    stream_options_.seed = static_cast<uint64_t>(recipe_.training.seed);
    stream_.emplace(train_data_.examples, stream_options_);
    const double per_step =
        static_cast<double>(stream_options_.batch_size * stream_options_.accumulation);
    total_steps_ = recipe_.training.max_steps.value_or(static_cast<int64_t>(
        std::ceil(recipe_.training.num_train_epochs *
                  static_cast<double>(stream_->sequences_per_epoch()) / per_step)));
    if (state_.config.max_position_embeddings > 0 &&
        train_data_.longest > state_.config.max_position_embeddings) {
      audit_.add("positions", AuditStatus::kWarning,
                 fmt::format("rows have up to {} tokens; the model was made for {}", train_data_.longest,
                             state_.config.max_position_embeddings));
    }
  }

  // Rehearses what the end of the run does, so that it cannot fail there for a reason known now.
  void check_before_start() {
    int64_t bytes = 0;
    for (const std::string& name : trained_) {
      bytes += static_cast<int64_t>(state_.tensors.at(name).size_bytes());
    }
    audit_output(audit_, output_, 2 * bytes);
    if (full() || !audit_.ok()) return;
    const std::filesystem::path rehearsal = output_ / ".rehearsal-adapter";
    try {
      save_adapter(rehearsal, saved_adapter_config(), state_.adapter, state_.tensors);
      load_adapter(rehearsal, state_.adapter);
      audit_.add("adapter files", AuditStatus::kOk, "written and read back once, for rehearsal");
    } catch (const Error& error) {
      audit_.refuse("adapter files", error);
    }
    std::error_code ignored;
    std::filesystem::remove_all(rehearsal, ignored);
  }

  // Targets by name, also where the recipe said all-linear: other tools count other layers as linear.
  AdapterConfig saved_adapter_config() const {
    AdapterConfig config = state_.adapter_config;
    config.base_model_name_or_path = recipe_.model;
    if (config.target_modules.expression == "all-linear") {
      config.target_modules.expression.reset();
      for (const auto& [target, count] : state_.adapter.modules_per_target) {
        config.target_modules.suffixes.push_back(target);
      }
    }
    return config;
  }

  StepOptions step_options() const {
    StepOptions options;
    options.config = &state_.config;
    options.dtype = compute_.dtype;
    options.lora = state_.adapter.sites;
    options.parameters = state_.parameters;
    options.adapters = state_.adapter.variables;
    options.trained = trained_;
    options.no_decay = no_decay_;
    const TrainingOptions& t = recipe_.training;
    options.adamw = {t.adam_beta1, t.adam_beta2, t.adam_epsilon, t.weight_decay};
    options.max_grad_norm = t.max_grad_norm;
    options.remat = t.remat;
    options.scan_layers = recipe_.scan_layers;
    return options;
  }

  // Compiles for the shapes to come and states the memory plan.
  void prepare_programs() {
    std::map<BatchShape, int64_t> shapes;
    BatchStream ahead(train_data_.examples, stream_options_);
    for (int64_t i = 0; i < std::min(total_steps_, kShapeHorizon); ++i) ++shapes[shape_of(ahead.next())];
    runner_.emplace(step_options(), state_.tensors, compute_.threads);
    // The largest first: its plan is the run's.
    std::vector<std::pair<BatchShape, int64_t>> order(shapes.begin(), shapes.end());
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return a.first.sequence_length * 4096 + a.first.targets >
             b.first.sequence_length * 4096 + b.first.targets;
    });
    std::string listed;
    cpu::MemoryPlan plan;
    for (size_t i = 0; i < std::min(order.size(), kCompiledAhead); ++i) {
      const cpu::MemoryPlan& p = runner_->prepare_train(order[i].first);
      if (p.arena_bytes >= plan.arena_bytes) plan = p;
      if (i == 0 && recipe_.training.stats_steps > 0) runner_->prepare_train(order[i].first, true);
    }
    for (const auto& [shape, count] : order) {
      listed += fmt::format("{}{} x {} tokens ({} steps)", listed.empty() ? "" : ", ", shape.batch_size,
                            shape.sequence_length, count);
      if (listed.size() > 200) break;
    }
    audit_.add("shapes", AuditStatus::kOk, fmt::format("{} batch shapes: {}", order.size(), listed));
    state_plan(plan);
  }

  void state_plan(const cpu::MemoryPlan& plan) {
    touch_mapped_pages(state_);
    gemm_limit_ = measure_gemm_limit(compute_.threads);
    int64_t weights = 0, trained = 0;
    for (const VariableSpec& v : state_.parameters) {
      weights += static_cast<int64_t>(state_.tensors.at(v.name).size_bytes());
    }
    for (const std::string& name : trained_) {
      trained += static_cast<int64_t>(state_.tensors.at(name).size_bytes());
    }
    // What is resident besides the arena is measured, not planned: program text, libraries, data.
    const int64_t resident = resident_bytes();
    const auto arena = static_cast<int64_t>(runner_->arena_bytes());
    planned_peak_ = std::max(resident + arena, peak_resident_bytes());
    const nlohmann::ordered_json document = {
        {"weights_bytes", weights},
        {"trained_bytes", trained},
        {"optimizer_bytes", 2 * trained},
        {"arena_bytes", arena},
        {"activation_bytes", plan.activation_bytes},
        {"scratch_bytes", plan.scratch_bytes},
        {"resident_before_arena_bytes", resident},
        {"predicted_peak_bytes", planned_peak_},
        {"gemm_limit_flops_per_second", gemm_limit_},
    };
    audit_.plan = document.dump();
    audit_.add("memory", AuditStatus::kOk,
               fmt::format("predicted peak {:.0f} MB: {:.0f} MB resident now (weights {:.0f} MB) and "
                           "{:.0f} MB for the step (activations {:.0f} MB)",
                           megabytes(static_cast<double>(planned_peak_)),
                           megabytes(static_cast<double>(resident)), megabytes(static_cast<double>(weights)),
                           megabytes(static_cast<double>(arena)),
                           megabytes(static_cast<double>(plan.activation_bytes))));
    runner_->reserve();
  }

  void report_audit() {
    log_line(format_audit(audit_, isatty(STDERR_FILENO) != 0));
    std::error_code error;
    std::filesystem::create_directories(output_, error);
    if (!error) write_file_atomically(output_ / "audit.json", audit_json(audit_));
  }

  // Event files of an earlier run in the same folder would be drawn together with this one's.
  void remove_old_events() const {
    for (const auto& entry : std::filesystem::directory_iterator(output_)) {
      if (entry.path().filename().string().starts_with("events.out.tfevents.")) {
        std::filesystem::remove(entry.path());
      }
    }
  }

  double evaluate(int64_t step) {
    EvaluationResult result;
    for (int64_t i = 0; i < eval_batches_->size(); ++i) runner_->evaluate(eval_batches_->get(i), result);
    metrics_->write(EvalMetrics{step, result.loss(), result.trained_tokens});
    events_->write(step, {{"eval/loss", result.loss()}});
    progress_->note(fmt::format("step {}: eval loss {:.4f} over {} tokens", step, result.loss(),
                                result.trained_tokens));
    return result.loss();
  }

  void train() {
    remove_old_events();
    metrics_.emplace(output_ / "metrics.jsonl");
    events_.emplace(output_);
    progress_.emplace(total_steps_,
                      isatty(STDERR_FILENO) ? Progress::Style::kTerminal : Progress::Style::kPlain,
                      [](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); });
    if (eval_batches_) summary_.eval_loss_before = evaluate(0);
    const TrainingOptions& t = recipe_.training;
    const ScheduleLength length = schedule_length(t, total_steps_);
    start_ = Clock::now();
    for (int64_t step = 1; step <= total_steps_; ++step) {
      const double rate = *t.learning_rate * schedule_factor(t.lr_scheduler_type, step - 1, length);
      take_step(step, rate);
      const bool evaluates = t.eval_steps > 0 && step % t.eval_steps == 0;
      if (eval_batches_ && (evaluates || step == total_steps_)) {
        const Clock::time_point before = Clock::now();
        summary_.eval_loss_after = evaluate(step);
        start_ += Clock::now() - before;  // evaluation is not training time
      }
    }
    progress_->finish();
  }

  // One step, and its line in the log when it is due.
  void take_step(int64_t step, double rate) {
    const TrainingOptions& t = recipe_.training;
    const Batch batch = stream_->next();
    const bool statistics = t.stats_steps > 0 && step % t.stats_steps == 0;
    const Clock::time_point before = Clock::now();
    const StepResult result = runner_->train(
        batch, {rate, step, static_cast<uint64_t>(t.seed)}, statistics);
    const double seconds = seconds_since(before);
    if (!result.finite) stop_not_finite(step, result, batch);
    tokens_ += batch.tokens;
    trained_tokens_ += batch.trained_tokens;
    interval_.loss += result.loss * static_cast<double>(batch.trained_tokens);
    interval_.trained_tokens += batch.trained_tokens;
    interval_.tokens += batch.tokens;
    interval_.seconds += seconds;
    interval_.flops += runner_->gemm_flops(shape_of(batch));
    ++interval_.steps;
    summary_.steps = step;
    if (step % t.logging_steps != 0 && step != total_steps_ && !statistics) return;
    StepMetrics m;
    m.step = step;
    m.epoch = stream_->epochs_done();
    m.loss = interval_.loss / static_cast<double>(interval_.trained_tokens);
    m.grad_norm = result.grad_norm;
    m.learning_rate = rate;
    m.tokens = tokens_;
    m.trained_tokens = trained_tokens_;
    m.tokens_per_second = static_cast<double>(interval_.tokens) / interval_.seconds;
    m.step_seconds = interval_.seconds / static_cast<double>(interval_.steps);
    m.peak_rss_bytes = peak_resident_bytes();
    m.gemm_share = interval_.flops / interval_.seconds / gemm_limit_;
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
    for (size_t i = 0; i < trained_.size() && tensors.size() < 200; ++i) {
      if (std::isfinite(result.squared_norms[i])) continue;
      tensors += (tensors.empty() ? "" : ", ") + trained_[i];
    }
    throw Error(
        fmt::format("step {}: the loss is {} and the gradient norm {}; not finite: {}; the batch holds {} "
                    "of {}; the weights are as they were before this step",
                    step, result.loss, result.grad_norm,
                    tensors.empty() ? "the loss or the sum of norms" : "gradients of " + tensors,
                    list_lines(batch.lines, train_data_.unit), train_data_.name),
        "", "lower training.learning_rate, or look at these rows");
  }

  TrainingSummary finish() {
    if (full()) {
      summary_.result = output_ / "model";
      save_model_folder(summary_.result, state_, text_ ? &*text_ : nullptr,
                        [&](const std::string& name) { return state_.tensors.at(name); });
    } else {
      summary_.result = output_ / "adapter";
      save_adapter(summary_.result, saved_adapter_config(), state_.adapter, state_.tensors);
      load_adapter(summary_.result, state_.adapter);  // it is whole, finite, and loads
    }
    const double elapsed = seconds_since(start_);
    summary_.tokens_per_second = static_cast<double>(tokens_) / elapsed;
    summary_.planned_peak_bytes = planned_peak_;
    summary_.measured_peak_bytes = peak_resident_bytes();
    info("trained {} steps in {}: {:.0f} tokens/s; peak memory {:.0f} MB, predicted {:.0f} MB",
         summary_.steps, format_duration(elapsed), summary_.tokens_per_second,
         megabytes(static_cast<double>(summary_.measured_peak_bytes)),
         megabytes(static_cast<double>(planned_peak_)));
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

  Recipe recipe_;
  std::filesystem::path output_;
  Compute compute_;
  Audit audit_;
  ModelState state_;
  std::vector<std::string> trained_, no_decay_;
  std::optional<TextModel> text_;
  Dataset train_data_;
  std::optional<Dataset> eval_data_;
  std::optional<EvaluationBatches> eval_batches_;
  BatchOptions stream_options_;
  std::optional<BatchStream> stream_;
  int64_t total_steps_ = 0;
  std::optional<StepRunner> runner_;
  std::optional<MetricsWriter> metrics_;
  std::optional<TensorBoardWriter> events_;
  std::optional<Progress> progress_;
  double gemm_limit_ = 0;
  int64_t planned_peak_ = 0;
  Clock::time_point start_;
  int64_t tokens_ = 0, trained_tokens_ = 0;
  Interval interval_;
  TrainingSummary summary_;
};

}  // namespace

TrainingSummary run_training(Recipe recipe) {
  require_keys(recipe, {"model", "output_dir", "data.train"});
  return Run(std::move(recipe)).execute();
}

}  // namespace graft
