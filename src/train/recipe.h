#pragma once
// The recipe: everything that decides what a run does, in one struct, parsed, checked and printed
// in one place.
//
// A recipe is a YAML file whose keys may be overridden on the command line (training.max_steps=10,
// each value read as YAML). Every option is one row of the table in recipe_keys.cpp: its name, its
// place in the struct, the values it may take and its help; docs/recipe.md lists the same. A key
// that the table does not have is refused with the nearest one that it has; a key that PEFT or TRL
// know and graft does not is refused by name, with what to write instead.
//
//   Recipe recipe = load_recipe("recipe.yaml", {"lora.r=16"});
//   require_keys(recipe, {"model", "output_dir", "data.train"});
//   resolve_recipe(recipe, today());  // text/chat_template.h
//   write_file_atomically(folder / "recipe.resolved.yaml", format_recipe(recipe));
//
// format_recipe writes every key; loading what it wrote gives the same recipe again.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adapters/quantization.h"
#include "data/options.h"
#include "formats/peft.h"
#include "ir/autodiff.h"
#include "sharding/rules.h"

namespace graft {

enum class TrainingMethod : uint8_t { kLora, kFull };
enum class Schedule : uint8_t { kConstant, kConstantWithWarmup, kLinear, kCosine };
enum class ComputeDType : uint8_t { kAuto, kF32, kBF16 };
enum class InstructionSet : uint8_t { kAuto, kSse4, kAvx2, kAvx512, kAvx512Bf16, kAmx };
std::string_view training_method_name(TrainingMethod method);  // "lora"
std::string_view schedule_name(Schedule schedule);             // "constant_with_warmup"
std::string_view compute_dtype_name(ComputeDType dtype);       // "bf16"
std::string_view instruction_set_name(InstructionSet isa);     // "avx2"

struct TrainingOptions {
  TrainingMethod method = TrainingMethod::kLora;
  std::vector<std::string> trainable;   // method full: regular expressions; empty: every parameter
  std::optional<double> learning_rate;  // set by resolve_recipe
  Schedule lr_scheduler_type = Schedule::kLinear;
  int64_t warmup_steps = 0;
  double warmup_ratio = 0;           // of all steps; one of the two
  std::optional<int64_t> max_steps;  // overrides num_train_epochs
  double num_train_epochs = 3;
  int64_t per_device_batch_size = 8;  // rows in a micro-batch
  int64_t gradient_accumulation_steps = 1;
  std::optional<int64_t> global_batch_size;  // rows of a step over all; decides accumulation
  double weight_decay = 0;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double max_grad_norm = 1;  // 0: no clipping
  bool decay_all = false;
  int64_t seed = 42;
  bool shuffle = true;
  int64_t logging_steps = 1;
  int64_t eval_steps = 0;   // 0: before the first step and after the last only
  int64_t stats_steps = 0;  // 0: never
  Remat remat = Remat::kMinimal;
  int64_t save_steps = 500;                 // 0: after the last step only
  std::optional<int64_t> save_total_limit;  // none: all are kept
  bool save_on_exit = true;
  bool save_base = false;
  std::string resume = "auto";  // or never, "step N", a checkpoint's or a run's folder
  bool overwrite_output_dir = false;
  std::string init_state;  // a checkpoint, a run, or exported parameters; empty: none
};

// Shared with the commands that only run a model.
struct ComputeOptions {
  ComputeDType dtype = ComputeDType::kAuto;
  int64_t threads = 0;              // 0: every core
  std::string executor = "native";  // or pjrt:cpu, pjrt:cuda, pjrt:tpu, pjrt:PATH
  int64_t virtual_devices = 0;      // of pjrt:cpu; 0: as many as the mesh has
  InstructionSet isa = InstructionSet::kAuto;
};

struct Recipe {
  std::string model;
  std::string output_dir;
  DataOptions data;
  QuantizationOptions quantization;
  AdapterConfig lora;
  std::string init_adapter;  // lora.init_adapter: a folder; empty: PEFT's default start
  TrainingOptions training;
  ComputeOptions compute;
  bool scan_layers = true;
  std::vector<std::string> exports;                  // formats to export when training has finished
  PatternList<int64_t> mesh;                         // axis to size, -1: the rest
  PatternList<std::vector<std::string>> axis_rules;  // logical_axis_rules: before the defaults

  Recipe();

  // Where a key was given, for messages: "recipe.yaml:12", "command line", or "default".
  std::string where(std::string_view key) const;
  bool given(std::string_view key) const { return origins.contains(std::string(key)); }
  std::map<std::string, std::string> origins;
};

// Overrides are key=value. Raises Error naming file:line, or the override.
Recipe load_recipe(const std::filesystem::path& file, std::span<const std::string> overrides = {});
Recipe parse_recipe(std::string_view text, const std::string& name,
                    std::span<const std::string> overrides = {});

// Raises Error unless each of the keys was given.
void require_keys(const Recipe& recipe, std::initializer_list<std::string_view> keys);

// Fills what depends on other keys or on the day: learning_rate (2e-4 for lora, 2e-5 for full), and
// data.template_date (`today`, YYYY-MM-DD).
void resolve_recipe(Recipe& recipe, const std::string& today);

std::string format_recipe(const Recipe& recipe);

// One row of the table, for documentation and tests.
struct RecipeKeyInfo {
  std::string name;  // "training.learning_rate"
  std::string type;  // "number > 0"
  std::string default_value;
  std::string help;
};
std::vector<RecipeKeyInfo> recipe_key_table();

// The rows of one optimiser step on `devices` that the batch is split over (axes data and fsdp).
struct BatchSplit {
  int64_t rows = 1;  // of a micro-batch, over all devices
  int64_t accumulation = 1;
};
// Raises Error with the numbers where training.global_batch_size cannot be kept.
BatchSplit split_batch(const Recipe& recipe, int64_t devices);

// logical_axis_rules as rules, before the default ones.
AxisRules axis_rules(const Recipe& recipe);

}  // namespace graft
