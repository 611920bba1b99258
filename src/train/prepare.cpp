#include "train/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/data_identity.h"
#include "models/layout.h"
#include "train/data_audit.h"
#include "train/export.h"
#include "train/flops.h"
#include "train/process.h"
#include "train/quantization_audit.h"
#include "train/schedule.h"
#include "train/start.h"
#include "train/trained.h"

namespace graft {
namespace {

double megabytes(double bytes) { return bytes / 1e6; }

// How many steps ahead the shapes of batches are looked up, to plan for the largest.
constexpr int64_t kShapeHorizon = 20000;
// Programs compiled before step 0; further shapes are compiled when they are first met.
constexpr size_t kCompiledAhead = 4;

class Preparation {
 public:
  Preparation(Recipe recipe, ResumePlan resume) : run_(std::make_unique<PreparedRun>()) {
    run_->recipe = std::move(recipe);
    run_->resume = std::move(resume);
  }

  std::unique_ptr<PreparedRun> execute() {
    resolve_recipe(run_->recipe, today());
    run_->output = run_->recipe.output_dir;
    run_->compute = choose_compute(run_->recipe.compute, run_->recipe.model);
    run_->compute.mesh = run_->recipe.mesh;
    run_->compute.rules = axis_rules(run_->recipe);
    refuse_mesh();
    open_devices();
    tell_resume();
    identify_base();
    start_ = starting_point(run_->recipe, run_->resume);
    load_model();
    try {
      load_data();
    } catch (const Error& error) {
      run_->audit.refuse("data", error);
      report_audit();
      throw;
    }
    check_before_start();
    prepare_programs();
    report_audit();
    refuse_unless_ok(run_->audit);
    return std::move(run_);
  }

 private:
  bool full() const { return run_->full(); }

  // The native executor is one device.
  void refuse_mesh() const {
    if (!run_->compute.native()) return;
    for (const auto& [axis, size] : run_->recipe.mesh) {
      if (size <= 1) continue;
      throw Error(fmt::format("mesh.{} is {}, and the native executor is one device", axis, size),
                  run_->recipe.where("mesh"), "leave the mesh out, or set compute.executor");
    }
  }

  void tell_resume() {
    for (const std::string& note : run_->resume.notes)
      run_->audit.add("resume", AuditStatus::kOk, note);
    for (const std::string& warning : run_->resume.warnings)
      run_->audit.add("resume", AuditStatus::kWarning, warning);
    if (run_->resume.checkpoint) run_->progress = run_->resume.checkpoint->manifest.progress;
  }

  // Names and shapes are compared at once; contents are read in the background.
  void identify_base() {
    run_->base = std::make_unique<BaseIdentityTask>(run_->recipe.model);
    if (!run_->resume.checkpoint) return;
    run_->expected_base = run_->resume.checkpoint->base();
    require_same_base(*run_->expected_base, base_outline(run_->recipe.model),
                      run_->resume.checkpoint->folder);
  }

  void open_devices() {
    executor_ = make_executor(run_->compute);
    if (run_->compute.mesh.empty()) return;
    const Mesh mesh = Mesh::resolve(run_->compute.mesh, executor_->device_count());
    data_parallel_ = mesh.data_parallel();
  }

  void load_model() {
    // Trained weights are kept in f32; a frozen base in what is computed with.
    run_->state =
        load_model_state(run_->recipe.model, full() ? DType::kF32 : run_->compute.dtype,
                         {.quantization = run_->recipe.quantization, .keep_packed = !full()});
    audit_quantization(run_->audit, run_->state);
    for (const std::string& note : run_->state.notes)
      run_->audit.add("model", AuditStatus::kWarning, note);
    run_->audit.add("compute", AuditStatus::kOk,
                    fmt::format("{}, {} threads", run_->compute.reason, run_->compute.threads));
    if (full()) {
      choose_trained();
    } else {
      attach();
      for (const VariableSpec& v : run_->state.adapter.variables) run_->trained.push_back(v.name);
    }
    std::sort(run_->trained.begin(), run_->trained.end());
    for (const std::string& name : run_->trained) {
      run_->audit.trainable_parameters += run_->state.tensors.at(name).elements();
    }
    begin_optimizer(run_->state, run_->trained, start_ ? start_->checkpoint : std::nullopt);
    run_->audit.total_parameters =
        run_->state.parameter_count() + run_->state.adapter_parameter_count();
  }

  // method full: the parameters that training.trainable names, or all. Each is made writable.
  void choose_trained() {
    TrainedParameters chosen =
        choose_trained_parameters(run_->recipe.training, run_->state.parameters);
    run_->trained = std::move(chosen.trained);
    run_->no_decay = std::move(chosen.no_decay);
    for (const std::string& name : run_->trained) {
      run_->state.tensors[name] = run_->state.tensors.at(name).clone();
    }
    for (const std::string& pattern : chosen.unmatched) {
      run_->audit.add(
          "trainable", AuditStatus::kRefused,
          fmt::format("\"{}\" in training.trainable matches no parameter; graft inspect lists them",
                      pattern));
    }
    if (start_) load_trained_parameters(run_->state, run_->trained, *start_);
    tell_start("the base model's weights");
  }

  void tell_start(const std::string& otherwise) {
    run_->audit.add("start", AuditStatus::kOk,
                    "training begins from " + (start_ ? start_->words : otherwise));
  }

  void attach() {
    const bool from_elsewhere =
        !run_->recipe.init_adapter.empty() || !run_->recipe.training.init_state.empty();
    if (start_ && from_elsewhere) take_adapter_options(run_->recipe, start_->folder);
    run_->state.adapter_config = run_->recipe.lora;
    run_->state.adapter = plan_adapters(run_->recipe.lora, all_linears(run_->state.config));
    audit_targets(run_->audit, run_->state.adapter.modules_per_target,
                  run_->state.adapter.unmatched_targets, run_->state.adapter.unmatched_patterns);
    if (!run_->audit.ok()) {
      report_audit();
      refuse_unless_ok(run_->audit);
    }
    if (start_) {
      for (auto& [name, tensor] : load_adapter(start_->folder, run_->state.adapter)) {
        run_->state.tensors.insert_or_assign(name, std::move(tensor));
      }
    } else {
      for (const VariableSpec& v : run_->state.adapter.variables) {
        run_->state.tensors.insert_or_assign(
            v.name, initial_adapter_value(v, static_cast<uint64_t>(run_->recipe.training.seed)));
      }
    }
    tell_start("a fresh adapter (A uniform, B zero)");
  }

  void load_data() {
    if (has_tokenizer(run_->recipe.model) || !run_->recipe.data.chat_template.empty()) {
      run_->text = load_text_model(run_->recipe.model, run_->recipe.data.chat_template);
    }
    const TextModel* text = run_->text ? &*run_->text : nullptr;
    run_->train_data =
        load_dataset(run_->recipe.data.train, text, run_->recipe.data, run_->compute.threads);
    if (!run_->recipe.data.eval.empty()) {
      run_->eval_data =
          load_dataset(run_->recipe.data.eval, text, run_->recipe.data, run_->compute.threads);
      run_->eval_batches.emplace(run_->eval_data->examples,
                                 run_->recipe.training.per_device_batch_size * data_parallel_);
    }
    audit_data(run_->audit, run_->train_data, {text, run_->state.config.vocab_size});
    const BatchSplit split = split_batch(run_->recipe, data_parallel_);
    run_->batches.batch_size = split.rows;
    run_->batches.accumulation = split.accumulation;
    run_->batches.max_length = run_->recipe.data.max_length;
    run_->batches.packing = run_->recipe.data.packing;
    run_->batches.shuffle = run_->recipe.training.shuffle;
    run_->batches.seed = static_cast<uint64_t>(run_->recipe.training.seed);
    run_->stream.emplace(run_->train_data.examples, run_->batches);
    run_->data_identity = data_identity(*run_->train_data.examples, *run_->stream, run_->batches);
    const double per_step =
        static_cast<double>(run_->batches.batch_size * run_->batches.accumulation);
    const double by_epochs =
        std::ceil(run_->recipe.training.num_train_epochs *
                  static_cast<double>(run_->stream->sequences_per_epoch()) / per_step);
    constexpr double kMostSteps = 1e9;
    if (!run_->recipe.training.max_steps && by_epochs > kMostSteps) {
      throw Error(fmt::format("training.num_train_epochs: {} would take {:.3g} steps",
                              run_->recipe.training.num_train_epochs, by_epochs),
                  run_->recipe.where("training.num_train_epochs"),
                  "give fewer, or training.max_steps");
    }
    run_->total_steps = run_->recipe.training.max_steps.value_or(
        static_cast<int64_t>(std::min(by_epochs, kMostSteps)));
    audit_schedule();
    if (run_->resume.checkpoint) continue_data();
    if (run_->state.config.max_position_embeddings > 0 &&
        run_->train_data.longest > run_->state.config.max_position_embeddings) {
      run_->audit.add(
          "positions", AuditStatus::kWarning,
          fmt::format("rows have up to {} tokens; the model was made for {}",
                      run_->train_data.longest, run_->state.config.max_position_embeddings));
    }
  }

  // Goes to the checkpoint's place in the data, which must be the same data.
  void continue_data() {
    const Checkpoint& checkpoint = *run_->resume.checkpoint;
    if (checkpoint.manifest.data.sha256 != run_->data_identity.sha256) {
      const std::string problem = fmt::format(
          "the rows of {} are not those that this run began with: {} then, {} now, other content",
          run_->recipe.data.train, checkpoint.manifest.data.rows, run_->data_identity.rows);
      if (!run_->resume.forced) {
        throw Error("data.train: " + problem, checkpoint.folder.string(),
                    "put the old rows back, or go on all the same with --force-resume");
      }
      run_->audit.add("resume", AuditStatus::kWarning, problem);
    }
    const DataPosition& position = checkpoint.manifest.progress.position;
    const bool is_there = position.sequence < run_->stream->sequences_per_epoch();
    run_->stream->seek(is_there ? position : DataPosition{position.epoch + 1, 0});
    if (run_->total_steps < run_->progress.step) {
      throw Error(fmt::format("the recipe asks for {} steps, and the run has taken {}",
                              run_->total_steps, run_->progress.step),
                  checkpoint.folder.string(),
                  "ask for more steps, or go back with training.resume=\"step N\"");
    }
  }

  void audit_schedule() {
    const ScheduleLength length = schedule_length(run_->recipe.training, run_->total_steps);
    if (length.warmup_steps == 0 || length.warmup_steps < run_->total_steps) return;
    run_->audit.add("schedule", AuditStatus::kWarning,
                    fmt::format("the warm-up of {} steps is not over after the run's {} steps: the "
                                "rate never reaches training.learning_rate",
                                length.warmup_steps, run_->total_steps));
  }

  // Rehearses what the end of the run does, so that it cannot fail there for a reason known now.
  void check_before_start() {
    int64_t bytes = 0;
    for (const std::string& name : run_->trained) {
      bytes += static_cast<int64_t>(run_->state.tensors.at(name).size_bytes());
    }
    // The result, one checkpoint with both moments, and one more that is being written.
    audit_output(run_->audit, run_->output, 7 * bytes);
    try {
      check_exports(run_->recipe, run_->state.config);
    } catch (const Error& error) {
      run_->audit.refuse("export", error);
    }
    if (full() || !run_->audit.ok()) return;
    const std::filesystem::path rehearsal = run_->output / ".rehearsal-adapter";
    try {
      save_adapter(rehearsal, run_->saved_adapter_config(), run_->state.adapter,
                   run_->state.tensors);
      load_adapter(rehearsal, run_->state.adapter);
      run_->audit.add("adapter files", AuditStatus::kOk,
                      "written and read back once, for rehearsal");
    } catch (const Error& error) {
      run_->audit.refuse("adapter files", error);
    }
    std::error_code ignored;
    std::filesystem::remove_all(rehearsal, ignored);
  }

  StepOptions options_of_step() const {
    StepOptions options = step_options(run_->recipe, run_->state.config, run_->compute.dtype);
    set_variables(options, run_->state);
    options.trained = run_->trained;
    options.no_decay = run_->no_decay;
    return options;
  }

  // Compiles for the shapes to come and states the memory plan.
  void prepare_programs() {
    std::map<BatchShape, int64_t> shapes;
    BatchStream ahead(run_->train_data.examples, run_->batches);
    ahead.seek(run_->stream->position());
    // At least one, though a run that goes on may have taken all its steps.
    const int64_t left = std::max<int64_t>(1, run_->total_steps - run_->progress.step);
    for (int64_t i = 0; i < std::min(left, kShapeHorizon); ++i) ++shapes[shape_of(ahead.next())];
    run_->runner.emplace(options_of_step(), run_->state.tensors, std::move(executor_));
    // The largest first: its plan is the run's.
    std::vector<std::pair<BatchShape, int64_t>> order(shapes.begin(), shapes.end());
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return a.first.sequence_length * 4096 + a.first.targets >
             b.first.sequence_length * 4096 + b.first.targets;
    });
    std::string listed;
    MemoryPlan plan;
    for (size_t i = 0; i < std::min(order.size(), kCompiledAhead); ++i) {
      const MemoryPlan& p = run_->runner->prepare_train(order[i].first);
      if (p.arena_bytes >= plan.arena_bytes) plan = p;
      if (i == 0 && run_->recipe.training.stats_steps > 0)
        run_->runner->prepare_train(order[i].first, true);
    }
    for (const auto& [shape, count] : order) {
      listed += fmt::format("{}{} x {} tokens ({} steps)", listed.empty() ? "" : ", ",
                            shape.batch_size, shape.sequence_length, count);
      if (listed.size() > 200) break;
    }
    run_->audit.add(
        "shapes", AuditStatus::kOk,
        fmt::format("{} batch shape{}: {}", order.size(), order.size() == 1 ? "" : "s", listed));
    const StepRunner::Compilation compilation = run_->runner->compilation();
    run_->audit.add(
        "executor", AuditStatus::kOk,
        fmt::format("{}; {} programs compiled in {:.1f} s{}",
                    run_->runner->executor().description(), compilation.programs,
                    compilation.seconds,
                    compilation.from_cache > 0
                        ? fmt::format(", {} of them loaded from the cache", compilation.from_cache)
                        : ""));
    state_plan(plan);
  }

  void state_plan(const MemoryPlan& plan) {
    touch_mapped_pages(run_->state);
    run_->gemm_limit = measure_gemm_limit(run_->compute.threads, run_->compute.dtype);
    int64_t weights = 0, trained = 0;
    for (const VariableSpec& v : run_->state.parameters) {
      weights += static_cast<int64_t>(run_->state.tensors.at(v.name).size_bytes());
    }
    for (const std::string& name : run_->trained) {
      trained += static_cast<int64_t>(run_->state.tensors.at(name).size_bytes());
    }
    // What is resident besides the arena is measured, not planned: program text, libraries, data.
    const int64_t resident = resident_bytes();
    const auto arena = static_cast<int64_t>(run_->runner->arena_bytes());
    // A checkpoint that is written while training goes on is a copy of what is trained.
    const int64_t copy = saves_meanwhile() ? 3 * trained : 0;
    // Virtual devices have their arrays in this machine's memory too.
    const auto arrays = static_cast<int64_t>(plan.argument_bytes);
    const int64_t devices = run_->runner->executor().device_count();
    const bool on_host = run_->compute.native() || run_->compute.executor == "pjrt:cpu";
    run_->planned_peak = std::max(resident + copy + (on_host ? devices * (arena + arrays) : 0),
                                  peak_resident_bytes());
    const nlohmann::ordered_json document = {
        {"weights_bytes", weights},
        {"weights_by_scheme", nlohmann::ordered_json(bytes_by_scheme(run_->state))},
        {"trained_bytes", trained},
        {"optimizer_bytes", 2 * trained},
        {"arena_bytes", arena},
        {"argument_bytes", arrays},
        {"devices", devices},
        {"compile_seconds", run_->runner->compilation().seconds},
        {"programs_from_cache", run_->runner->compilation().from_cache},
        {"activation_bytes", plan.activation_bytes},
        {"scratch_bytes", plan.scratch_bytes},
        {"checkpoint_copy_bytes", copy},
        {"resident_before_arena_bytes", resident},
        {"predicted_peak_bytes", run_->planned_peak},
        {"export_peak_bytes", export_peak_bytes(run_->state.config, run_->compute.dtype)},
        {"gemm_limit_flops_per_second", run_->gemm_limit},
    };
    run_->audit.plan = document.dump();
    run_->audit.add(
        "memory", AuditStatus::kOk,
        fmt::format("predicted peak {:.0f} MB: {:.0f} MB resident now (weights {:.0f} MB) and "
                    "{:.0f} MB for the step (activations {:.0f} MB)",
                    megabytes(static_cast<double>(run_->planned_peak)),
                    megabytes(static_cast<double>(resident)),
                    megabytes(static_cast<double>(weights)), megabytes(static_cast<double>(arena)),
                    megabytes(static_cast<double>(plan.activation_bytes))));
    run_->runner->reserve();
  }

  bool saves_meanwhile() const {
    const int64_t every = run_->recipe.training.save_steps;
    return every > 0 && (run_->progress.step / every + 1) * every < run_->total_steps;
  }

  void report_audit() {
    log_line(format_audit(run_->audit, isatty(STDERR_FILENO) != 0));
    std::error_code error;
    std::filesystem::create_directories(run_->output, error);
    if (!error) write_file_atomically(run_->output / "audit.json", audit_json(run_->audit));
  }

  std::unique_ptr<PreparedRun> run_;
  std::optional<StartingPoint> start_;  // of the trained weights; none: fresh
  std::unique_ptr<Executor> executor_;  // until the runner takes it
  int64_t data_parallel_ = 1;           // devices that a batch is split over
};

}  // namespace

AdapterConfig PreparedRun::saved_adapter_config() const {
  AdapterConfig config = state.adapter_config;
  config.base_model_name_or_path = recipe.model;
  if (config.target_modules.expression == "all-linear") {
    config.target_modules.expression.reset();
    for (const auto& [target, count] : state.adapter.modules_per_target) {
      config.target_modules.suffixes.push_back(target);
    }
  }
  return config;
}

void PreparedRun::require_expected_base() const {
  const BaseIdentity& found = base->get();
  if (expected_base) require_same_base(*expected_base, found, resume.checkpoint->folder);
}

std::unique_ptr<PreparedRun> prepare_run(Recipe recipe, ResumePlan resume) {
  require_keys(recipe, {"model", "output_dir", "data.train"});
  return Preparation(std::move(recipe), std::move(resume)).execute();
}

}  // namespace graft
