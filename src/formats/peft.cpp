#include "formats/peft.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "formats/json.h"

namespace graft {
namespace {

using nlohmann::json;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr const char* kPeftVersion = "0.21.2";  // the release whose format is written

// Fields that do not change what an adapter computes, whatever they say. (qalora_group_size,
// megatron_core: only with others that are refused. inference_mode: graft trains what it is told
// to.)
constexpr std::array kWithoutEffect = {"peft_type",     "peft_version",     "auto_mapping",
                                       "revision",      "inference_mode",   "runtime_config",
                                       "megatron_core", "qalora_group_size"};

// Fields that AdapterConfig holds.
constexpr std::array kRead = {"base_model_name_or_path",
                              "task_type",
                              "r",
                              "lora_alpha",
                              "lora_dropout",
                              "use_rslora",
                              "target_modules",
                              "exclude_modules",
                              "layers_to_transform",
                              "layers_pattern",
                              "rank_pattern",
                              "alpha_pattern",
                              "init_lora_weights",
                              "bias"};

// What one would be missing, for the fields of PEFT that are refused unless neutral. Fields that
// are not listed are refused the same way, as unknown.
struct Refusal {
  std::string_view field, what;
};
constexpr std::array kRefused = {
    Refusal{"use_dora", "DoRA"},
    Refusal{"modules_to_save", "training whole modules beside the adapter"},
    Refusal{"target_parameters", "adapting bare parameters"},
    Refusal{"trainable_token_indices", "training single token embeddings"},
    Refusal{"lora_bias", "a bias in the low-rank term"},
    Refusal{"fan_in_fan_out", "transposed weights"},
    Refusal{"alora_invocation_tokens", "activated LoRA"},
    Refusal{"layer_replication", "replicated layers"},
    Refusal{"use_qalora", "QALoRA"},
    Refusal{"use_bdlora", "block-diagonal LoRA"},
    Refusal{"velora_config", "VeLoRA"},
    Refusal{"arrow_config", "Arrow routing"},
    Refusal{"kasa_config", "KaSA"},
    Refusal{"monteclora_config", "MonteCLoRA"},
    Refusal{"megatron_config", "Megatron layers"},
    Refusal{"ensure_weight_tying", "tied adapters"},
    Refusal{"loftq_config", "LoftQ initialisation"},
    Refusal{"eva_config", "EVA initialisation"},
    Refusal{"corda_config", "CorDA initialisation"},
    Refusal{"lora_ga_config", "LoRA-GA initialisation"},
};

bool contains(const auto& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// A value that says "not used" in any field.
bool is_neutral(const json& value) {
  const bool empty_container = value.is_structured() && value.empty();
  return value.is_null() || value == false || value == "" || empty_container;
}

void refuse_unsupported(const JsonObject& config) {
  for (const std::string& key : config.keys()) {
    if (contains(kRead, key) || contains(kWithoutEffect, key) || is_neutral(*config.find(key))) {
      continue;
    }
    const auto* known = std::find_if(kRefused.begin(), kRefused.end(),
                                     [&](const Refusal& each) { return each.field == key; });
    if (known != kRefused.end()) {
      config.fail(key, fmt::format("{} is not supported", known->what),
                  "use an adapter trained without it");
    }
    config.fail(key, "is an unknown field that may change the result", "remove it if it does not");
  }
}

// "gaussian" and "orthogonal" choose first values that the adapter's file has replaced since; the
// other names (pissa, olora, loftq, corda, eva, lora_ga, ...) also changed the base model's
// weights, or the ranks.
void check_init(const JsonObject& config) {
  const json* value = config.find("init_lora_weights");
  if (value == nullptr || value->is_null() || value->is_boolean()) return;
  if (*value == "gaussian" || *value == "orthogonal") return;
  config.fail("init_lora_weights", fmt::format("{} is not supported", value->dump()),
              "convert the adapter to plain LoRA with PEFT");
}

void check_method(const JsonObject& config) {
  const auto type = config.required<std::string>("peft_type");
  if (type != "LORA") {
    config.fail("peft_type", fmt::format("\"{}\" is not supported", type), "use a LORA adapter");
  }
  const std::string bias = config.optional<std::string>("bias").value_or("none");
  if (bias != "none") {
    config.fail("bias", fmt::format("\"{}\" is not supported", bias),
                "use an adapter trained with bias \"none\"");
  }
  const std::string task = config.optional<std::string>("task_type").value_or("CAUSAL_LM");
  if (task != "CAUSAL_LM") {
    config.fail("task_type", fmt::format("\"{}\" is not supported", task),
                "use an adapter for CAUSAL_LM");
  }
}

ModuleSelection read_modules(const JsonObject& config, std::string_view key) {
  ModuleSelection modules;
  if (!config.has(key)) return modules;
  if (config.find(key)->is_string()) {
    modules.expression = config.required<std::string>(key);
  } else {
    modules.suffixes = config.required<std::vector<std::string>>(key);
  }
  return modules;
}

// A list, or a single value in its place.
template <typename T>
std::optional<std::vector<T>> read_list(const JsonObject& config, std::string_view key) {
  if (!config.has(key)) return std::nullopt;
  if (config.find(key)->is_array()) return config.required<std::vector<T>>(key);
  return std::vector<T>{config.required<T>(key)};
}

int64_t checked_rank(const JsonObject& object, std::string_view key, int64_t rank) {
  if (rank < 1 || rank > INT32_MAX) object.fail(key, fmt::format("{} is not a rank", rank));
  return rank;
}

double checked_alpha(const JsonObject& object, std::string_view key, double alpha) {
  if (!std::isfinite(alpha)) object.fail(key, "must be finite");
  return alpha;
}

// The keys of one object of the file in their own order, which decides between patterns; `json`
// sorts.
std::vector<std::string> keys_in_order(std::string_view text, const char* object) {
  std::vector<std::string> keys;
  const auto document = nlohmann::ordered_json::parse(text);
  for (const auto& [key, value] : document.at(object).items()) keys.push_back(key);
  return keys;
}

void read_patterns(std::string_view text, const JsonObject& config, AdapterConfig& result) {
  if (const auto ranks = config.optional_object("rank_pattern")) {
    for (const std::string& key : keys_in_order(text, "rank_pattern")) {
      result.rank_pattern.emplace_back(key,
                                       checked_rank(*ranks, key, ranks->required<int64_t>(key)));
    }
  }
  if (const auto alphas = config.optional_object("alpha_pattern")) {
    for (const std::string& key : keys_in_order(text, "alpha_pattern")) {
      result.alpha_pattern.emplace_back(key,
                                        checked_alpha(*alphas, key, alphas->required<double>(key)));
    }
  }
}

// The rules of PEFT's own constructor.
void check_combination(const JsonObject& config, const AdapterConfig& result) {
  if (result.target_modules.empty()) {
    config.fail("target_modules", "names no module", "list the modules that the adapter changes");
  }
  if (result.target_modules.expression && result.layers_to_transform) {
    config.fail("layers_to_transform", "cannot be used when target_modules is an expression");
  }
  if (!result.layers_pattern.empty() && !result.layers_to_transform) {
    config.fail("layers_pattern", "needs layers_to_transform");
  }
}

json number(double value) {
  // Python writes a whole number that was given as one without a fraction.
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

template <typename T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

json modules_json(const ModuleSelection& modules) {
  if (modules.expression) return *modules.expression;
  if (modules.suffixes.empty()) return nullptr;
  std::vector<std::string> sorted = modules.suffixes;  // a set, in PEFT
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace

AdapterConfig parse_adapter_config(std::string_view text, const std::string& name) {
  const json document = parse_json(text, name);
  const JsonObject config(document, name);
  check_method(config);
  refuse_unsupported(config);
  check_init(config);
  AdapterConfig result;
  result.base_model_name_or_path = config.optional<std::string>("base_model_name_or_path");
  result.task_type = config.optional<std::string>("task_type");
  result.r = checked_rank(config, "r", config.optional<int64_t>("r").value_or(8));
  result.lora_alpha =
      checked_alpha(config, "lora_alpha", config.optional<double>("lora_alpha").value_or(8));
  result.lora_dropout = config.optional<double>("lora_dropout").value_or(0);
  if (!(result.lora_dropout >= 0 && result.lora_dropout < 1)) {
    config.fail("lora_dropout", fmt::format("{} is not in [0, 1)", result.lora_dropout));
  }
  result.use_rslora = config.optional<bool>("use_rslora").value_or(false);
  result.target_modules = read_modules(config, "target_modules");
  result.exclude_modules = read_modules(config, "exclude_modules");
  result.layers_to_transform = read_list<int64_t>(config, "layers_to_transform");
  result.layers_pattern =
      read_list<std::string>(config, "layers_pattern").value_or(std::vector<std::string>{});
  read_patterns(text, config, result);
  result.lists_target_parameters = config.has("target_parameters");  // empty, or it was refused
  check_combination(config, result);
  return result;
}

AdapterConfig read_adapter_config(const std::filesystem::path& path) {
  return parse_adapter_config(read_text_file(path), path.string());
}

std::string format_adapter_config(const AdapterConfig& config) {
  json document;
  // Not supported, at PEFT's default values.
  for (const char* field :
       {"alora_invocation_tokens", "arrow_config", "auto_mapping", "corda_config", "eva_config",
        "kasa_config", "layer_replication", "lora_ga_config", "megatron_config", "modules_to_save",
        "monteclora_config", "revision", "target_parameters", "trainable_token_indices",
        "use_bdlora", "velora_config"}) {
    document[field] = nullptr;
  }
  for (const char* field :
       {"ensure_weight_tying", "fan_in_fan_out", "lora_bias", "use_dora", "use_qalora"}) {
    document[field] = false;
  }
  document["bias"] = "none";
  document["inference_mode"] = true;
  document["init_lora_weights"] = true;
  document["loftq_config"] = json::object();
  document["megatron_core"] = "megatron.core";
  document["peft_type"] = "LORA";
  document["peft_version"] = kPeftVersion;
  document["qalora_group_size"] = 16;

  document["base_model_name_or_path"] = or_null(config.base_model_name_or_path);
  document["task_type"] = or_null(config.task_type);
  document["r"] = config.r;
  document["lora_alpha"] = number(config.lora_alpha);
  document["lora_dropout"] = config.lora_dropout;
  document["use_rslora"] = config.use_rslora;
  if (config.lists_target_parameters) document["target_parameters"] = json::array();
  document["target_modules"] = modules_json(config.target_modules);
  document["exclude_modules"] = modules_json(config.exclude_modules);
  document["layers_to_transform"] = or_null(config.layers_to_transform);
  document["rank_pattern"] = document["alpha_pattern"] = nullptr;  // below
  document["layers_pattern"] =
      config.layers_pattern.empty() ? json(nullptr) : json(config.layers_pattern);
  // As Python's json.dumps(..., indent=2, sort_keys=True): pure ASCII, no newline at the end. Only
  // the patterns keep their order, which has a meaning.
  nlohmann::ordered_json sorted = document;
  nlohmann::ordered_json ranks = nlohmann::ordered_json::object(), alphas = ranks;
  for (const auto& [key, rank] : config.rank_pattern) ranks[key] = rank;
  for (const auto& [key, alpha] : config.alpha_pattern)
    alphas[key] = nlohmann::ordered_json(number(alpha));
  sorted["rank_pattern"] = std::move(ranks);
  sorted["alpha_pattern"] = std::move(alphas);
  return sorted.dump(2, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

void write_adapter_config(const std::filesystem::path& path, const AdapterConfig& config) {
  write_file_atomically(path, format_adapter_config(config));
}

std::string adapter_key(std::string_view module, AdapterPart part) {
  return fmt::format("{}{}.{}.weight", kPrefix, module,
                     part == AdapterPart::kA ? "lora_A" : "lora_B");
}

std::optional<AdapterKey> parse_adapter_key(std::string_view key) {
  constexpr std::string_view suffix = ".weight";
  if (!key.starts_with(kPrefix)) return std::nullopt;
  key.remove_prefix(kPrefix.size());
  if (!key.ends_with(suffix)) return std::nullopt;  // of what is left: the two share a dot
  key.remove_suffix(suffix.size());
  for (const auto& [marker, part] : {std::pair{std::string_view(".lora_A"), AdapterPart::kA},
                                     std::pair{std::string_view(".lora_B"), AdapterPart::kB}}) {
    const size_t place = key.rfind(marker);
    if (place == std::string_view::npos || place == 0) continue;
    const std::string_view rest = key.substr(place + marker.size());
    // The adapter's own name, if any, is one part of the path.
    const bool named = rest.size() > 1 && rest[0] == '.' && rest.find('.', 1) == std::string::npos;
    if (rest.empty() || named) return AdapterKey{std::string(key.substr(0, place)), part};
  }
  return std::nullopt;
}

}  // namespace graft
