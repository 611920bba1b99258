#include "train/recipe.h"

#include "base/error.h"
#include "base/file.h"
#include "sharding/mesh.h"
#include "train/recipe_keys.h"
#include "train/yaml_document.h"

namespace graft {
namespace {

constexpr std::string_view kSections[] = {"data", "quantization", "lora", "training", "compute"};
// The section that may also be given as one word, which is this key of it.
constexpr std::string_view kShortSection = "quantization", kShortKey = "quantization.scheme";

bool is_section(std::string_view name) {
  for (const std::string_view section : kSections) {
    if (name == section) return true;
  }
  return false;
}

// Every value given, by dotted key; a later one replaces an earlier one.
using Settings = std::map<std::string, YamlNode, std::less<>>;

Settings flatten(const YamlNode& root) {
  Settings settings;
  if (root.is_null()) return settings;
  if (root.kind != YamlNode::Kind::kMap) {
    throw Error(fmt::format("a recipe is a mapping of keys to values, not {}", root.describe()),
                root.where);
  }
  for (const auto& [name, node] : root.members) {
    if (!is_section(name)) {
      settings[name] = node;
      continue;
    }
    if (node.is_null()) continue;  // an empty section
    if (name == kShortSection && node.kind == YamlNode::Kind::kScalar) {
      settings[std::string(kShortKey)] = node;
      continue;
    }
    if (node.kind != YamlNode::Kind::kMap) {
      throw Error(
          fmt::format("{} is a section: expected keys below it, not {}", name, node.describe()),
          node.where);
    }
    for (const auto& [key, value] : node.members) settings[name + "." + key] = value;
  }
  return settings;
}

void apply_override(const std::string& text, Settings& settings) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw Error(fmt::format("\"{}\" is no override", text), "command line",
                "write key=value, as in training.max_steps=100");
  }
  std::string key = text.substr(0, equals);
  if (key == kShortSection) key = kShortKey;
  if (is_section(key)) {
    throw Error(fmt::format("{} is a section", key), "command line",
                fmt::format("set one of its keys, as in {}.KEY=VALUE", key));
  }
  const std::string place = fmt::format("command line ({})", text);
  settings[key] = parse_yaml_value(text.substr(equals + 1), place);
}

[[noreturn]] void refuse_unknown(const std::string& name, const YamlNode& node) {
  if (is_section(name)) throw Error(fmt::format("{} is a section", name), node.where);
  const NearestKey nearest = nearest_recipe_key(name);
  std::string shown = nearest.name;
  if (const size_t dot = shown.find('.'); dot != std::string::npos) {
    shown = fmt::format("{} ({} in the section {})", nearest.name, nearest.name.substr(dot + 1),
                        nearest.name.substr(0, dot));
  }
  throw Error(fmt::format("unknown key {}", name), node.where,
              nearest.alike
                  ? fmt::format("did you mean {}?", shown)
                  : fmt::format("the nearest known key is {}; docs/recipe.md lists all", shown));
}

void apply_settings(const Settings& settings, Recipe& recipe) {
  for (const auto& [name, node] : settings) {
    const RecipeKey* key = find_recipe_key(name);
    if (key == nullptr) {
      const ForeignKey* foreign = find_foreign_key(name);
      if (foreign == nullptr) refuse_unknown(name, node);
      if (is_neutral(*foreign, node)) continue;
      throw Error(fmt::format("{} is not supported", name), node.where,
                  std::string(foreign->advice));
    }
    try {
      key->read(recipe, node);
    } catch (const Error& e) {
      throw Error(fmt::format("{}: {}", name, e.problem()), e.where(), e.remedy());
    }
    if (!node.is_null()) recipe.origins[name] = node.where;
  }
}

// What one key says about another.
void check_together(const Recipe& recipe) {
  const TrainingOptions& training = recipe.training;
  const auto refuse = [&](std::string_view key, std::string problem, std::string remedy) {
    throw Error(fmt::format("{}: {}", key, problem), recipe.where(key), std::move(remedy));
  };
  if (training.warmup_steps > 0 && training.warmup_ratio > 0) {
    refuse("training.warmup_ratio", "training.warmup_steps is given too", "give one of the two");
  }
  if (training.lr_scheduler_type == Schedule::kConstant &&
      (training.warmup_steps > 0 || training.warmup_ratio > 0)) {
    refuse("training.lr_scheduler_type", "the constant schedule has no warm-up",
           "write constant_with_warmup");
  }
  if (training.method == TrainingMethod::kLora && !training.trainable.empty()) {
    refuse("training.trainable", "it belongs to training.method: full",
           "choose an adapter's modules with lora.target_modules");
  }
  for (const std::string& format : recipe.exports) {
    const bool adapter = format == "peft" || format == "gguf-adapter";
    if (!adapter || training.method == TrainingMethod::kLora) continue;
    refuse("export", fmt::format("training.method is full, which has no adapter for {}", format),
           "export hf or gguf");
  }
  if (training.method == TrainingMethod::kFull) {
    for (const auto& [name, place] : recipe.origins) {
      if (name.starts_with("lora.")) {
        refuse(name, "training.method is full, which has no adapter", "remove the lora section");
      }
    }
  }
  const QuantizationOptions& quantization = recipe.quantization;
  if (quantization.enabled() && training.method == TrainingMethod::kFull) {
    refuse("quantization.scheme", "training.method is full, which trains the base's own weights",
           "train an adapter (method: lora), or leave quantization out");
  }
  for (const auto& [name, place] : recipe.origins) {
    if (name.starts_with("quantization.") && name != kShortKey && !quantization.enabled()) {
      refuse(name, "nothing is quantised", "set quantization.scheme, as in quantization: nf4");
    }
  }
  if (training.eval_steps > 0 && recipe.data.eval.empty()) {
    refuse("training.eval_steps", "there is nothing to evaluate on", "set data.eval");
  }
}

// Names and sizes; how many devices there are is not known here.
void check_mesh(const Recipe& recipe) {
  try {
    MeshAxes axes = recipe.mesh;
    int open = 0;
    for (auto& axis : axes) {
      if (axis.second != -1) continue;
      axis.second = 1;
      ++open;
    }
    if (open > 1) {
      throw Error("two axes have the size -1", "", "only one can take the rest of the devices");
    }
    refuse_unsupported_axes(Mesh(std::move(axes)));
  } catch (const Error& e) {
    throw Error(fmt::format("mesh: {}", e.problem()), recipe.where("mesh"), e.remedy());
  }
}

// Keys without meaning under the other keys are not written: reading them back would be refused.
bool applies(const Recipe& recipe, std::string_view name) {
  const bool full = recipe.training.method == TrainingMethod::kFull;
  if (name.starts_with("lora.")) return !full;
  if (name == "training.trainable") return full;
  if (name.starts_with("quantization.") && name != kShortKey) {
    return recipe.quantization.enabled();
  }
  return true;
}

}  // namespace

Recipe::Recipe() {
  lora.r = 16;
  lora.lora_alpha = 32;
  lora.target_modules.expression = "all-linear";
}

BatchSplit split_batch(const Recipe& recipe, int64_t devices) {
  const TrainingOptions& t = recipe.training;
  BatchSplit split{t.per_device_batch_size * devices, t.gradient_accumulation_steps};
  if (!t.global_batch_size) return split;
  if (*t.global_batch_size % split.rows != 0) {
    throw Error(fmt::format("{} rows a step are not a multiple of {} rows on each of {} devices",
                            *t.global_batch_size, t.per_device_batch_size, devices),
                recipe.where("training.global_batch_size"),
                "change training.per_device_batch_size or the mesh");
  }
  split.accumulation = *t.global_batch_size / split.rows;
  return split;
}

AxisRules axis_rules(const Recipe& recipe) {
  AxisRules local;
  for (const auto& [logical, mesh_axes] : recipe.axis_rules) local.push_back({logical, mesh_axes});
  return combine(std::move(local), default_axis_rules());
}

std::string Recipe::where(std::string_view key) const {
  const auto found = origins.find(std::string(key));
  return found == origins.end() ? fmt::format("recipe (default of {})", key) : found->second;
}

Recipe parse_recipe(std::string_view text, const std::string& name,
                    std::span<const std::string> overrides) {
  Settings settings = flatten(parse_yaml(text, name));
  for (const std::string& override_text : overrides) apply_override(override_text, settings);
  Recipe recipe;
  apply_settings(settings, recipe);
  check_together(recipe);
  check_mesh(recipe);
  return recipe;
}

Recipe load_recipe(const std::filesystem::path& file, std::span<const std::string> overrides) {
  return parse_recipe(read_text_file(file), file.string(), overrides);
}

void require_keys(const Recipe& recipe, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (recipe.given(key)) continue;
    const size_t dot = key.find('.');
    const std::string remedy =
        dot == std::string_view::npos
            ? fmt::format("add {}: ...", key)
            : fmt::format("add {}: ... in the section {}", key.substr(dot + 1), key.substr(0, dot));
    throw Error(fmt::format("the key {} is missing", key), "recipe", remedy);
  }
}

void resolve_recipe(Recipe& recipe, const std::string& today) {
  if (!recipe.training.learning_rate) {
    recipe.training.learning_rate = recipe.training.method == TrainingMethod::kLora ? 2e-4 : 2e-5;
  }
  if (recipe.data.template_date.empty()) recipe.data.template_date = today;
}

std::string format_recipe(const Recipe& recipe) {
  std::string text = "# Every option of this run. graft train on this file repeats it.\n";
  std::string section;
  for (const RecipeKey& key : recipe_keys()) {
    if (!applies(recipe, key.name)) continue;
    const size_t dot = key.name.find('.');
    if (dot == std::string_view::npos) {
      text += fmt::format("{}: {}\n", key.name, key.write(recipe));
      continue;
    }
    if (section != key.name.substr(0, dot)) {
      section = key.name.substr(0, dot);
      text += section + ":\n";
    }
    text += fmt::format("  {}: {}\n", key.name.substr(dot + 1), key.write(recipe));
  }
  return text;
}

}  // namespace graft
