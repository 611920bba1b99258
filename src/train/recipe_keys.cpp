#include "train/recipe_keys.h"

#include <chrono>

#include "train/export.h"
#include "train/recipe_row.h"

namespace graft {
namespace {

bool is_date(const std::string& text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return false;
  for (const size_t i : {0, 1, 2, 3, 5, 6, 8, 9}) {
    if (text[i] < '0' || text[i] > '9') return false;
  }
  return std::chrono::year_month_day(std::chrono::year(std::stoi(text.substr(0, 4))),
                                     std::chrono::month(std::stoul(text.substr(5, 2))),
                                     std::chrono::day(std::stoul(text.substr(8, 2))))
      .ok();
}

bool is_executor(const std::string& text) {
  return text == "native" || text == "pjrt:cpu" || text == "pjrt:cuda" || text == "pjrt:tpu" ||
         (text.starts_with("pjrt:") && text.find_first_of("/.") != std::string::npos);
}

#define GRAFT_PLACE(member) \
  [](Recipe & r) -> auto& { return r.member; }

std::vector<RecipeKey> top_rows() {
  const Rule<std::string> path = not_blank("path");
  return {
      row("model", GRAFT_PLACE(model), path,
          "the base model: a Hugging Face folder or a .gguf file"),
      row("output_dir", GRAFT_PLACE(output_dir), path, "the folder that the run writes"),
      row("scan_layers", GRAFT_PLACE(scan_layers), Rule<bool>{"true or false"},
          "run the layers as one loop; false unrolls them (same bits, longer set-up)"),
      row("export", GRAFT_PLACE(exports),
          Rule<std::string>{"list of peft, hf, gguf-adapter, gguf, params",
                            [](const std::string& x) { return find_export_format(x).has_value(); }},
          "what to write at the end for other programs, as graft export does"),
      row("mesh", GRAFT_PLACE(mesh),
          Rule<int64_t>{"mapping to sizes, -1 once for the rest",
                        [](const int64_t& x) { return x >= -1 && x != 0; }},
          "the devices by axis: data, fsdp, tensor; {}: one device"),
      row("logical_axis_rules", GRAFT_PLACE(axis_rules),
          Rule<std::vector<std::string>>{"mapping to lists of mesh axes"},
          "which mesh axes split a logical axis, before the default rules; []: none"),
  };
}

std::vector<RecipeKey> data_rows() {
  const Rule<std::string> path = not_blank("path");
  const Rule<std::string> date{"date, YYYY-MM-DD", is_date};
  return {
      row("data.train", GRAFT_PLACE(data.train), path,
          "training rows: .jsonl, .json, .csv or .parquet; .gz too"),
      row("data.eval", GRAFT_PLACE(data.eval), path, "held-out rows of the same kind; null: none"),
      choice("data.format", GRAFT_PLACE(data.format),
             std::vector<DataFormat>{DataFormat::kAuto, DataFormat::kMessages,
                                     DataFormat::kPromptCompletion, DataFormat::kText,
                                     DataFormat::kAlpaca, DataFormat::kShareGpt,
                                     DataFormat::kTokenized},
             data_format_name, "what the columns mean; auto recognises them"),
      row("data.max_length", GRAFT_PLACE(data.max_length), whole(2, 1 << 20), "tokens in a row"),
      choice("data.on_too_long", GRAFT_PLACE(data.on_too_long),
             std::vector<OnTooLong>{OnTooLong::kDrop, OnTooLong::kTruncate, OnTooLong::kError},
             on_too_long_name, "what becomes of a row longer than max_length"),
      row("data.packing", GRAFT_PLACE(data.packing), Rule<bool>{"true or false"},
          "put several rows into one sequence, isolated from each other"),
      choice("data.train_on", GRAFT_PLACE(data.train_on),
             std::vector<TrainOn>{TrainOn::kAuto, TrainOn::kAssistant, TrainOn::kCompletion,
                                  TrainOn::kAll},
             train_on_name,
             "which tokens are trained; auto: replies, completions, or all of a text"),
      row("data.chat_template", GRAFT_PLACE(data.chat_template), path,
          "a Jinja file to use in place of the model's own template"),
      json_object(
          "data.template_variables",
          [](Recipe& r) -> std::string& { return r.data.template_variables; },
          "extra variables for the template (enable_thinking, ...)"),
      row("data.template_date", GRAFT_PLACE(data.template_date), date,
          "the day that templates see; null: the day the run first started"),
      row("data.max_dropped_share", GRAFT_PLACE(data.max_dropped_share), fraction(),
          "refuse to train when more than this share of the rows is dropped"),
      row("data.max_untrained_share", GRAFT_PLACE(data.max_untrained_share), fraction(),
          "refuse to train when more than this share of the rows trains no token"),
  };
}

std::vector<RecipeKey> quantization_rows() {
  using Scheme = QuantizationScheme;
  using Layout = QuantizationLayout;
  const Rule<ModuleSelection> selection{"list of names, regular expression, or all-linear"};
  return {
      choice("quantization.scheme", GRAFT_PLACE(quantization.scheme),
             std::vector<Scheme>{Scheme::kNone, Scheme::kNf4, Scheme::kInt8, Scheme::kInt4,
                                 Scheme::kFp8},
             quantization_scheme_name,
             "how the frozen base is held; quantization: nf4 says the same in short"),
      row("quantization.block_size", GRAFT_PLACE(quantization.block_size), whole(0, 4096),
          "weights that share a scale; 0: 64 for nf4, 32 for int4, a row for int8 and fp8"),
      row("quantization.double_quant", GRAFT_PLACE(quantization.double_quant),
          Rule<bool>{"true or false"}, "nf4: quantise the scales too"),
      choice("quantization.layout", GRAFT_PLACE(quantization.layout),
             std::vector<Layout>{Layout::kAuto, Layout::kBitsAndBytes, Layout::kQwix},
             quantization_layout_name,
             "blocks along the flattened matrix, or tiles that must divide the contracted axis"),
      row("quantization.modules", GRAFT_PLACE(quantization.modules), selection,
          "the linear layers to quantise; null: all that can carry an adapter"),
      row("quantization.keep", GRAFT_PLACE(quantization.keep), selection,
          "of those, the ones that stay as they are"),
  };
}

std::vector<RecipeKey> lora_rows() {
  const Rule<int64_t> rank = whole(1, 65536);
  std::vector<RecipeKey> rows = {
      row("lora.r", GRAFT_PLACE(lora.r), rank, "rank of the low-rank update"),
      row("lora.lora_alpha", GRAFT_PLACE(lora.lora_alpha), positive(),
          "the update is scaled by lora_alpha / r (with use_rslora, by lora_alpha / sqrt(r))"),
      row("lora.lora_dropout", GRAFT_PLACE(lora.lora_dropout), below_one(),
          "dropout before the first factor"),
      RecipeKey{"lora.target_modules",
                "list of names, regular expression, or all-linear",
                "",
                "",
                {},
                {}},
      RecipeKey{"lora.exclude_modules", "list of names, or regular expression", "", "", {}, {}},
      row("lora.layers_to_transform", GRAFT_PLACE(lora.layers_to_transform), whole(0, 100'000),
          "only these layers, counted from 0; null: all"),
      row("lora.rank_pattern", GRAFT_PLACE(lora.rank_pattern), rank,
          "name or regular expression: its own r"),
      row("lora.alpha_pattern", GRAFT_PLACE(lora.alpha_pattern), positive(),
          "name or regular expression: its own lora_alpha"),
      row("lora.use_rslora", GRAFT_PLACE(lora.use_rslora), Rule<bool>{"true or false"},
          "rank-stabilised scaling"),
      row("lora.init_adapter", GRAFT_PLACE(init_adapter), not_blank("path"),
          "an adapter folder to start from; null: a fresh start (A random, B zero)"),
  };
  rows[3] =
      row("lora.target_modules", GRAFT_PLACE(lora.target_modules),
          Rule<ModuleSelection>{rows[3].type, [](const ModuleSelection& s) { return !s.empty(); }},
          "the linear layers that get an adapter, by PEFT's matching rules");
  rows[4] =
      row("lora.exclude_modules", GRAFT_PLACE(lora.exclude_modules),
          Rule<ModuleSelection>{rows[4].type}, "of those, the ones that get none; null: none");
  rows[5].type = "list of whole numbers >= 0";
  rows[6].type = "mapping to whole numbers >= 1";
  rows[7].type = "mapping to numbers > 0";
  return rows;
}

std::vector<RecipeKey> training_rows() {
  const Rule<bool> truth{"true or false"};
  std::vector<RecipeKey> rows = {
      choice("training.method", GRAFT_PLACE(training.method),
             std::vector<TrainingMethod>{TrainingMethod::kLora, TrainingMethod::kFull},
             training_method_name,
             "lora: an adapter beside the frozen model; full: the model's own weights"),
      row("training.trainable", GRAFT_PLACE(training.trainable),
          Rule<std::string>{"list of regular expressions"},
          "method full: the parameters to train, by full name; []: all"),
      row("training.learning_rate", GRAFT_PLACE(training.learning_rate), positive(),
          "the schedule's peak"),
      choice("training.lr_scheduler_type", GRAFT_PLACE(training.lr_scheduler_type),
             std::vector<Schedule>{Schedule::kConstant, Schedule::kConstantWithWarmup,
                                   Schedule::kLinear, Schedule::kCosine},
             schedule_name, "the schedules of transformers"),
      row("training.warmup_steps", GRAFT_PLACE(training.warmup_steps), whole(0),
          "steps from rate 0 to the peak"),
      row("training.warmup_ratio", GRAFT_PLACE(training.warmup_ratio), fraction(),
          "the same as a share of all steps (rounded up); give one of the two"),
      row("training.max_steps", GRAFT_PLACE(training.max_steps), whole(1),
          "optimiser steps; the data repeats; null: by num_train_epochs"),
      row("training.num_train_epochs", GRAFT_PLACE(training.num_train_epochs), positive(),
          "times through the data"),
      row("training.per_device_batch_size", GRAFT_PLACE(training.per_device_batch_size),
          whole(1, 65536), "rows in one micro-batch"),
      row("training.gradient_accumulation_steps", GRAFT_PLACE(training.gradient_accumulation_steps),
          whole(1, 65536), "micro-batches in one optimiser step"),
      row("training.global_batch_size", GRAFT_PLACE(training.global_batch_size),
          whole(1, 1'000'000),
          "rows of an optimiser step over all devices: sets gradient_accumulation_steps; null: "
          "per_device_batch_size x devices x accumulation"),
      row("training.weight_decay", GRAFT_PLACE(training.weight_decay), not_negative(),
          "AdamW's decoupled decay"),
      row("training.adam_beta1", GRAFT_PLACE(training.adam_beta1), below_one(),
          "decay of the first moment"),
      row("training.adam_beta2", GRAFT_PLACE(training.adam_beta2), below_one(),
          "decay of the second moment"),
      row("training.adam_epsilon", GRAFT_PLACE(training.adam_epsilon), positive(),
          "added to the root of the second moment"),
      row("training.max_grad_norm", GRAFT_PLACE(training.max_grad_norm), not_negative(),
          "gradients are scaled down to this global norm; 0: never"),
      row("training.decay_all", GRAFT_PLACE(training.decay_all), truth,
          "decay norms and biases too (an adapter's tensors always decay)"),
      row("training.seed", GRAFT_PLACE(training.seed), whole(0, 4'294'967'295),
          "of the shuffling, the adapter's start and dropout"),
      row("training.shuffle", GRAFT_PLACE(training.shuffle), truth,
          "a new order of the rows in every epoch"),
      row("training.logging_steps", GRAFT_PLACE(training.logging_steps), whole(1),
          "a line of metrics every this many steps"),
      row("training.eval_steps", GRAFT_PLACE(training.eval_steps), whole(0),
          "evaluate every this many steps; before the first and after the last in any case"),
      row("training.stats_steps", GRAFT_PLACE(training.stats_steps), whole(0),
          "per-layer statistics every this many steps; 0: never"),
      choice(
          "training.remat", GRAFT_PLACE(training.remat),
          std::vector<Remat>{Remat::kNone, Remat::kMinimal, Remat::kFull}, remat_name,
          "what the backward pass computes again: nothing, all but the results of GEMMs, or all"),
      row("training.save_steps", GRAFT_PLACE(training.save_steps), whole(0),
          "a checkpoint every this many steps, and after the last in any case; 0: only then"),
      row("training.save_total_limit", GRAFT_PLACE(training.save_total_limit), whole(1),
          "keep this many checkpoints, the newest; null: all"),
      row("training.save_on_exit", GRAFT_PLACE(training.save_on_exit), truth,
          "at SIGTERM or SIGINT finish the step, save a checkpoint and exit with 0"),
      row("training.save_base", GRAFT_PLACE(training.save_base), truth,
          "put the frozen base weights into each checkpoint too"),
      row("training.resume", GRAFT_PLACE(training.resume),
          Rule<std::string>{"auto, never, step N, or path"},
          "go on from: the newest whole checkpoint of output_dir, none, that of step N, or that of "
          "another run"),
      row("training.overwrite_output_dir", GRAFT_PLACE(training.overwrite_output_dir), truth,
          "with resume: never, remove the run that output_dir holds"),
      row("training.init_state", GRAFT_PLACE(training.init_state), Rule<std::string>{"path"},
          "begin with the weights and the optimiser of another run or checkpoint (or exported "
          "weights alone), at step 0; null: not"),
  };
  rows[2].default_text = "2e-4 (lora), 2e-5 (full)";
  return rows;
}

std::vector<RecipeKey> compute_rows() {
  return {
      choice(
          "compute.dtype", GRAFT_PLACE(compute.dtype),
          std::vector<ComputeDType>{ComputeDType::kAuto, ComputeDType::kF32, ComputeDType::kBF16},
          compute_dtype_name,
          "type of the products; auto: the fastest that is right on this machine"),
      row("compute.threads", GRAFT_PLACE(compute.threads), whole(0, 4096), "0: every core"),
      row("compute.executor", GRAFT_PLACE(compute.executor),
          Rule<std::string>{"executor's name: native, pjrt:cpu, pjrt:cuda, pjrt:tpu or pjrt:PATH",
                            is_executor},
          "what runs the graph: graft's own kernels, or XLA through a PJRT plugin"),
      row("compute.virtual_devices", GRAFT_PLACE(compute.virtual_devices), whole(0, 1024),
          "devices that pjrt:cpu plays; 0: as many as the mesh has"),
      choice("compute.isa", GRAFT_PLACE(compute.isa),
             std::vector<InstructionSet>{InstructionSet::kAuto, InstructionSet::kSse4,
                                         InstructionSet::kAvx2, InstructionSet::kAvx512,
                                         InstructionSet::kAvx512Bf16, InstructionSet::kAmx},
             instruction_set_name,
             "the instruction set to compute with, so that another machine gives the same bits; "
             "auto: the best there is"),
  };
}

#undef GRAFT_PLACE

std::vector<RecipeKey> all_rows() {
  std::vector<RecipeKey> rows = top_rows();
  for (auto* section : {data_rows, quantization_rows, lora_rows, training_rows, compute_rows}) {
    for (RecipeKey& key : section()) rows.push_back(std::move(key));
  }
  for (RecipeKey& key : rows) {
    const bool needed = key.name == "model" || key.name == "output_dir" || key.name == "data.train";
    if (needed) key.default_text = "(required)";
  }
  return rows;
}

}  // namespace

const std::vector<RecipeKey>& recipe_keys() {
  static const std::vector<RecipeKey> rows = all_rows();
  return rows;
}

std::string_view training_method_name(TrainingMethod method) {
  return method == TrainingMethod::kLora ? "lora" : "full";
}
std::string_view schedule_name(Schedule schedule) {
  switch (schedule) {
    case Schedule::kConstant: return "constant";
    case Schedule::kConstantWithWarmup: return "constant_with_warmup";
    case Schedule::kLinear: return "linear";
    case Schedule::kCosine: return "cosine";
  }
  return "";
}
std::string_view compute_dtype_name(ComputeDType dtype) {
  switch (dtype) {
    case ComputeDType::kAuto: return "auto";
    case ComputeDType::kF32: return "f32";
    case ComputeDType::kBF16: return "bf16";
  }
  return "";
}
std::string_view instruction_set_name(InstructionSet isa) {
  switch (isa) {
    case InstructionSet::kAuto: return "auto";
    case InstructionSet::kSse4: return "sse4";
    case InstructionSet::kAvx2: return "avx2";
    case InstructionSet::kAvx512: return "avx512";
    case InstructionSet::kAvx512Bf16: return "avx512_bf16";
    case InstructionSet::kAmx: return "amx";
  }
  return "";
}

const RecipeKey* find_recipe_key(std::string_view name) {
  for (const RecipeKey& key : recipe_keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::vector<RecipeKeyInfo> recipe_key_table() {
  std::vector<RecipeKeyInfo> table;
  for (const RecipeKey& key : recipe_keys()) {
    table.push_back({std::string(key.name), key.type, key.default_text, std::string(key.help)});
  }
  return table;
}

}  // namespace graft
