#include "models/families.h"

#include <cmath>

#include "formats/gguf.h"
#include "models/config_reader.h"

namespace graft {
namespace {

void set_windows(ModelConfig& config, const std::vector<int32_t>& windows) {
  for (size_t i = 0; i < windows.size(); ++i) config.layers[i].window = windows[i];
}

void read_llama(ConfigReader& reader, ModelConfig& config) {
  config.qkv_bias = config.o_bias = reader.find<bool>("attention_bias").value_or(false);
  config.mlp_bias = reader.find<bool>("mlp_bias").value_or(false);
  // Old conversions of tensor-parallel checkpoints computed in slices; only rounding differs
  // above 1.
  reader.require_neutral("pretraining_tp", 1);
  reader.require_neutral("sliding_window", nullptr);
}

void read_mistral(ConfigReader& reader, ModelConfig& config) {
  const auto window = reader.find_extent("sliding_window");
  set_windows(config, reader.windows(static_cast<int64_t>(config.layers.size()), window,
                                     [](int64_t) { return true; }));
}

// Sliding windows of Qwen: off unless asked for, and then from layer max_window_layers on.
void read_qwen_windows(ConfigReader& reader, ModelConfig& config) {
  const bool use = reader.find<bool>("use_sliding_window").value_or(false);
  const auto window = reader.find_extent("sliding_window");
  const int64_t first = reader.find<int64_t>("max_window_layers").value_or(28);
  set_windows(config, reader.windows(static_cast<int64_t>(config.layers.size()),
                                     use ? window : std::nullopt,
                                     [first](int64_t i) { return i >= first; }));
}

void read_qwen2(ConfigReader& reader, ModelConfig& config) {
  config.qkv_bias = true;
  read_qwen_windows(reader, config);
}

void read_qwen3(ConfigReader& reader, ModelConfig& config) {
  config.qkv_bias = config.o_bias = reader.find<bool>("attention_bias").value_or(false);
  config.qk_norm = QkNorm::kPerHead;
  read_qwen_windows(reader, config);
}

constexpr Family kFamilies[] = {
    {"llama", "llama", "LlamaForCausalLM", read_llama, /*gguf_permutes_qk=*/true},
    {"mistral", "llama", "MistralForCausalLM", read_mistral, /*gguf_permutes_qk=*/true},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", read_qwen2},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", read_qwen3},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

const Family* find_family(std::string_view model_type) {
  for (const Family& family : kFamilies) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

const Family* find_gguf_family(std::string_view architecture) {
  for (const Family& family : kFamilies) {
    if (!architecture.empty() && family.gguf_architecture == architecture) return &family;
  }
  return nullptr;
}

}  // namespace graft
