#include "train/plan.h"

#include <algorithm>
#include <functional>

#include "adapters/adapter_file.h"
#include "base/error.h"
#include "cpu/executable.h"
#include "data/batches.h"
#include "data/dataset.h"
#include "models/layout.h"
#include "ops/common.h"
#include "text/text_model.h"
#include "train/runner.h"
#include "train/state.h"
#include "train/trained.h"

namespace graft {
namespace {

constexpr int64_t kLengthStep = 64, kTargetStep = 128;
constexpr int64_t kMostRows = 1 << 16, kMostTokens = 1 << 20;
// How many steps ahead the batches of data are looked at for the largest.
constexpr int64_t kHorizon = 2000;

int64_t rounded_up(int64_t n, int64_t step) { return ceil_div(n, step) * step; }

class Planner {
 public:
  Planner(Recipe recipe, const PlanOptions& options)
      : plan_options_(options), planned_(std::make_unique<PlannedStep>()) {
    planned_->recipe = std::move(recipe);
  }

  std::unique_ptr<PlannedStep> run() {
    Recipe& recipe = planned_->recipe;
    require_keys(recipe, {"model"});
    planned_->config = read_model_config(recipe.model);
    planned_->mesh = resolve_mesh();
    planned_->compute = plan_options_.accelerator
                            ? choose_accelerator_compute(recipe.compute, recipe.model)
                            : choose_compute(recipe.compute, recipe.model);
    choose_variables();
    choose_shape();
    return std::move(planned_);
  }

 private:
  bool full() const { return planned_->recipe.training.method == TrainingMethod::kFull; }

  Mesh resolve_mesh() const {
    const Recipe& recipe = planned_->recipe;
    MeshAxes axes = recipe.mesh;
    if (axes.empty() && plan_options_.devices > 1) axes = {{"fsdp", -1}};
    try {
      return Mesh::resolve(std::move(axes), plan_options_.devices);
    } catch (const Error& e) {
      throw Error(e.problem(), recipe.where("mesh"), e.remedy());
    }
  }

  void choose_variables() {
    const Recipe& recipe = planned_->recipe;
    const ModelConfig& config = planned_->config;
    StepOptions& options = planned_->options;
    options = step_options(recipe, config, planned_->compute.dtype);
    options.parameters = base_parameters(config);
    if (full()) {
      TrainedParameters chosen = choose_trained_parameters(recipe.training, options.parameters);
      if (!chosen.unmatched.empty()) {
        throw Error(fmt::format("\"{}\" matches no parameter", chosen.unmatched[0]),
                    recipe.where("training.trainable"));
      }
      options.trained = std::move(chosen.trained);
      options.no_decay = std::move(chosen.no_decay);
    } else {
      choose_adapter();
    }
    // Trained weights are kept in f32; a frozen base in what is computed with.
    for (VariableSpec& v : options.parameters) {
      v.dtype = full() ? DType::kF32 : planned_->compute.dtype;
      planned_->parameters += element_count(v.shape);
    }
    if (!full()) options.packed = planned_layouts(recipe.model, config, recipe.quantization);
    hold_packed(options.parameters, options.packed);
    for (const VariableSpec& v : state_variables(options)) {
      if (v.kind == VariableKind::kOptimizer)
        planned_->trained_parameters += element_count(v.shape);
    }
    planned_->trained_parameters /= 2;  // two moments each
  }

  void choose_adapter() {
    const Recipe& recipe = planned_->recipe;
    AdapterConfig config = recipe.lora;
    if (!recipe.init_adapter.empty()) {
      config = read_adapter_folder_config(recipe.init_adapter);
      config.lora_dropout = recipe.lora.lora_dropout;
    }
    planned_->adapter = plan_adapters(config, all_linears(planned_->config));
    if (!planned_->adapter.unmatched_targets.empty() || planned_->adapter.sites.empty()) {
      throw Error("a target of the adapter matches no module of the model",
                  recipe.where("lora.target_modules"), "graft inspect lists the linear modules");
    }
    StepOptions& options = planned_->options;
    options.lora = planned_->adapter.sites;
    options.adapters = planned_->adapter.variables;
    for (const VariableSpec& v : options.adapters) options.trained.push_back(v.name);
    std::sort(options.trained.begin(), options.trained.end());
  }

  void choose_shape() {
    const Recipe& recipe = planned_->recipe;
    const BatchSplit split = split_batch(recipe, planned_->data_parallel());
    std::string why = "no data.train is given";
    if (recipe.given("data.train")) {
      try {
        choose_shape_of_data(split);
        return;
      } catch (const Error& e) {
        why = fmt::format("the data cannot be read: {}", e.what());
      }
    }
    const int64_t length = rounded_up(recipe.data.max_length, kLengthStep);
    planned_->shape = {split.accumulation, split.rows, length,
                       rounded_up(split.rows * length, kTargetStep)};
    planned_->shape_source =
        fmt::format("rows of data.max_length tokens, every one trained ({})", why);
  }

  void choose_shape_of_data(const BatchSplit& split) {
    const Recipe& recipe = planned_->recipe;
    std::optional<TextModel> text;
    if (has_tokenizer(recipe.model))
      text = load_text_model(recipe.model, recipe.data.chat_template);
    const Dataset data = load_dataset(recipe.data.train, text ? &*text : nullptr, recipe.data,
                                      planned_->compute.threads);
    BatchOptions options;
    options.batch_size = split.rows;
    options.accumulation = split.accumulation;
    options.max_length = recipe.data.max_length;
    options.packing = recipe.data.packing;
    options.shuffle = recipe.training.shuffle;
    options.seed = static_cast<uint64_t>(recipe.training.seed);
    BatchStream stream(data.examples, options);
    const int64_t steps = std::min(recipe.training.max_steps.value_or(kHorizon), kHorizon);
    for (int64_t i = 0; i < steps; ++i) {
      const BatchShape shape = shape_of(stream.next());
      const auto weight = [](const BatchShape& s) {
        return std::pair(s.sequence_length, s.targets);
      };
      if (weight(shape) > weight(planned_->shape) || i == 0) planned_->shape = shape;
    }
    planned_->shape_source = fmt::format("the largest batch of {}", recipe.data.train);
  }

  PlanOptions plan_options_;
  std::unique_ptr<PlannedStep> planned_;
};

}  // namespace

std::unique_ptr<PlannedStep> plan_step(Recipe recipe, const PlanOptions& plan_options) {
  return Planner(std::move(recipe), plan_options).run();
}

ShardingTable sharding_table(const PlannedStep& planned, const BatchShape& shape) {
  std::vector<VariableSpec> variables = state_variables(planned.options);
  for (VariableSpec& v : batch_variables(shape)) variables.push_back(std::move(v));
  return resolve_shardings(variables, planned.mesh, axis_rules(planned.recipe));
}

NativeMemory native_memory(const PlannedStep& planned, const BatchShape& shape) {
  const std::unique_ptr<Graph> graph = build_train_step(planned.options, shape);
  const cpu::Executable executable = cpu::compile(*graph, {.threads = planned.compute.threads});
  NativeMemory memory;
  for (const Input& input : graph->inputs()) {
    const auto bytes = static_cast<int64_t>(graph->type(input.value).bytes());
    switch (input.kind) {
      case VariableKind::kParam: memory.weights += bytes; break;
      case VariableKind::kAdapter: memory.adapters += bytes; break;
      case VariableKind::kOptimizer: memory.optimizer += bytes; break;
      default: memory.batch += bytes;
    }
  }
  const MemoryPlan& plan = executable.plan();
  memory.constants = static_cast<int64_t>(plan.constant_bytes);
  memory.activations = static_cast<int64_t>(plan.activation_bytes);
  memory.workspace = static_cast<int64_t>(plan.arena_bytes) - memory.activations;
  return memory;
}

BatchShape with_batch(const BatchShape& shape, int64_t batch_size) {
  BatchShape result = shape;
  result.batch_size = batch_size;
  result.targets = rounded_up(ceil_div(shape.targets * batch_size, shape.batch_size), kTargetStep);
  return result;
}

BatchShape with_length(const BatchShape& shape, int64_t sequence_length) {
  BatchShape result = shape;
  result.sequence_length = sequence_length;
  result.targets =
      rounded_up(ceil_div(shape.targets * sequence_length, shape.sequence_length), kTargetStep);
  return result;
}

int64_t largest_that_fits(int64_t most, const std::function<bool(int64_t)>& fits) {
  int64_t good = 0, bad = 1;
  while (bad <= most && fits(bad)) {
    good = bad;
    if (good == most) return most;
    bad = std::min(bad * 2, most);
  }
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

int64_t largest_batch(const PlannedStep& planned, int64_t bytes) {
  return largest_that_fits(kMostRows, [&](int64_t n) {
    return native_memory(planned, with_batch(planned.shape, n)).total() <= bytes;
  });
}

int64_t longest_sequence(const PlannedStep& planned, int64_t bytes) {
  int64_t most = kMostTokens;
  if (planned.config.max_position_embeddings > 0) {
    most = std::min(most, planned.config.max_position_embeddings);
  }
  const int64_t steps = std::max<int64_t>(most / kLengthStep, 1);
  return kLengthStep * largest_that_fits(steps, [&](int64_t n) {
           return native_memory(planned, with_length(planned.shape, n * kLengthStep)).total() <=
                  bytes;
         });
}

}  // namespace graft
