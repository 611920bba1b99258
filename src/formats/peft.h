#pragma once
// Adapters in PEFT's format: adapter_config.json, and the names of the tensors beside it.
//
// The file is written with the fields, order and layout of PEFT 0.21.2. Reading keeps what graft
// can do and refuses, by name, every field that would change the result and is not supported,
// unless it has its neutral value; unknown fields are refused unless they are null, false or empty.
//
//   const AdapterConfig config = read_adapter_config("adapter/adapter_config.json");
//   adapter_key("model.layers.0.self_attn.q_proj", AdapterPart::kA);
//     // "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace graft {

// PEFT gives modules either as a list of suffixes or as one regular expression ("all-linear" counts
// as one; who matches modules knows what it means).
struct ModuleSelection {
  std::vector<std::string> suffixes;
  std::optional<std::string> expression;

  bool empty() const { return suffixes.empty() && !expression; }
};

// Overrides by pattern, in order: the first that matches a module wins.
template <typename T>
using PatternList = std::vector<std::pair<std::string, T>>;

struct AdapterConfig {
  std::optional<std::string> base_model_name_or_path;
  std::optional<std::string> task_type = "CAUSAL_LM";
  int64_t r = 8;
  double lora_alpha = 8;
  double lora_dropout = 0;
  bool use_rslora = false;
  ModuleSelection target_modules;
  ModuleSelection exclude_modules;
  std::optional<std::vector<int64_t>> layers_to_transform;
  std::vector<std::string> layers_pattern;
  PatternList<int64_t> rank_pattern;
  PatternList<double> alpha_pattern;
  // PEFT writes an empty list, not null, for models with experts, whose names it has rewritten.
  bool lists_target_parameters = false;
};

AdapterConfig parse_adapter_config(std::string_view text, const std::string& name);
AdapterConfig read_adapter_config(const std::filesystem::path& path);

std::string format_adapter_config(const AdapterConfig& config);
void write_adapter_config(const std::filesystem::path& path, const AdapterConfig& config);

enum class AdapterPart { kA, kB };

struct AdapterKey {
  std::string module;  // "model.layers.0.self_attn.q_proj"
  AdapterPart part;
};

// The name of a tensor in adapter_model.safetensors, and back. Names that carry the adapter's own
// name
// ("...lora_A.default.weight") are understood too; nothing for a name of any other form.
std::string adapter_key(std::string_view module, AdapterPart part);
std::optional<AdapterKey> parse_adapter_key(std::string_view key);

}  // namespace graft
