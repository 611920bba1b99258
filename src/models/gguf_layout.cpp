#include "models/gguf_layout.h"

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "models/families.h"
#include "models/layout.h"
#include "models/rope_scaling.h"

namespace graft {
namespace {

constexpr const char* kUseFolder = "export a Hugging Face folder (--format hf) instead";

int64_t permuted_heads(const ModelConfig& config, const std::string& parameter) {
  if (!gguf_permutes_rows(config)) return 0;
  if (parameter.find(".q_proj.") != std::string::npos) return config.num_attention_heads;
  if (parameter.find(".k_proj.") != std::string::npos) return config.num_key_value_heads;
  return 0;
}

enum class Direction { kToFile, kFromFile };

Tensor reorder(const ModelConfig& config, const std::string& parameter, const Tensor& rows,
               Direction direction) {
  const int64_t heads = permuted_heads(config, parameter);
  if (heads == 0) return rows;
  Tensor result = Tensor::empty(rows.dtype(), rows.shape());
  const int64_t per_head = rows.shape()[0] / heads, half = per_head / 2;
  const size_t width = rows.size_bytes() / static_cast<size_t>(rows.shape()[0]);
  const auto place = [&](int64_t row) { return static_cast<size_t>(row) * width; };
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < per_head; ++i) {
      const int64_t plain = h * per_head + i;
      const int64_t stored = h * per_head + (i < half ? 2 * i : 2 * (i - half) + 1);
      const bool out = direction == Direction::kToFile;
      std::memcpy(result.mutable_bytes() + place(out ? stored : plain),
                  rows.bytes() + place(out ? plain : stored), width);
    }
  }
  return result;
}

bool is_plain_yarn(const RopeParameters& p) {
  return p.type == "yarn" && p.beta_fast == 32 && p.beta_slow == 1 && p.truncate;
}

// Whether metadata alone says it: the other scalings are a table of divisors.
bool rope_has_a_name(const RopeConfig& rope) {
  const RopeParameters& p = rope.parameters;
  return p.type == "default" || p.type == "linear" || is_plain_yarn(p);
}

void write_rope(const ModelConfig& config, const std::string& architecture,
                GgufMetadata& metadata) {
  const RopeConfig& rope = config.ropes[0];
  const RopeParameters& p = rope.parameters;
  const std::string prefix = architecture + ".rope.";
  metadata.set_u32(prefix + "dimension_count", static_cast<uint32_t>(config.head_dim));
  metadata.set_f32(prefix + "freq_base", static_cast<float>(p.theta));
  double factor = rope.attention_factor;
  if (p.type == "linear" || is_plain_yarn(p)) {
    metadata.set_string(prefix + "scaling.type", p.type);
    metadata.set_f32(prefix + "scaling.factor", static_cast<float>(p.factor));
  }
  if (is_plain_yarn(p)) {
    metadata.set_u32(prefix + "scaling.original_context_length",
                     static_cast<uint32_t>(p.original_max_position_embeddings));
    factor /= yarn_magnitude(p.factor);  // which readers multiply with themselves
  }
  if (std::abs(factor - 1) > 1e-6) {
    metadata.set_f32(prefix + "scaling.attn_factor", static_cast<float>(factor));
  }
}

void check_expressible(const ModelConfig& config, const std::string& architecture) {
  const auto refuse = [&](const std::string& problem) {
    throw Error(fmt::format("a GGUF file of the architecture {} {}", architecture, problem),
                config.model_type, kUseFolder);
  };
  if (config.activation != "silu") refuse("cannot state the activation " + config.activation);
  for (const LayerConfig& layer : config.layers) {
    if (layer.window == kNoWindow) continue;
    if (config.max_position_embeddings > 0 && layer.window >= config.max_position_embeddings) {
      continue;  // it never hides a key
    }
    refuse(
        fmt::format("cannot state this model's sliding window of {} keys: llama.cpp would look "
                    "at all of them",
                    layer.window));
  }
  if (config.model_type == "qwen3" && config.qkv_bias) refuse("has no biases in attention");
  if (!rope_has_a_name(config.ropes[0]) && architecture != "llama") {
    refuse(fmt::format("cannot state rotary scaling of type {}", config.ropes[0].parameters.type));
  }
}

}  // namespace

std::string gguf_tensor_name(const std::string& name) {
  static const std::vector<std::pair<std::string, std::string>> table{
      {"self_attn.q_proj", "attn_q"},          {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},          {"self_attn.o_proj", "attn_output"},
      {"self_attn.q_norm", "attn_q_norm"},     {"self_attn.k_norm", "attn_k_norm"},
      {"mlp.gate_proj", "ffn_gate"},           {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},           {"input_layernorm", "attn_norm"},
      {"post_attention_layernorm", "ffn_norm"}};
  if (name == kEmbeddingName) return "token_embd.weight";
  if (name == kFinalNormName) return "output_norm.weight";
  if (name == kHeadName) return "output.weight";
  const std::string prefix = "model.layers.";
  GRAFT_CHECK(name.starts_with(prefix));
  const size_t dot = name.find('.', prefix.size());
  const std::string layer = name.substr(prefix.size(), dot - prefix.size());
  const size_t last = name.rfind('.');
  const std::string module = name.substr(dot + 1, last - dot - 1);
  for (const auto& [hugging_face, gguf] : table) {
    if (module == hugging_face) return "blk." + layer + "." + gguf + name.substr(last);
  }
  GRAFT_CHECK(false, "no GGUF name for {}", name);
  return "";
}

bool gguf_permutes_rows(const ModelConfig& config) {
  const Family* family = find_family(config.model_type);
  return family != nullptr && family->gguf_permutes_qk;
}

Tensor to_gguf_rows(const ModelConfig& config, const std::string& parameter, const Tensor& rows) {
  return reorder(config, parameter, rows, Direction::kToFile);
}

Tensor from_gguf_rows(const ModelConfig& config, const std::string& parameter,
                      const Tensor& stored) {
  return reorder(config, parameter, stored, Direction::kFromFile);
}

std::string gguf_architecture(const ModelConfig& config) {
  const Family* family = find_family(config.model_type);
  if (family == nullptr || family->gguf_architecture.empty()) {
    throw Error(fmt::format("there are no GGUF files of {} models", config.model_type), "",
                kUseFolder);
  }
  return std::string(family->gguf_architecture);
}

void write_gguf_config(const ModelConfig& config, GgufMetadata& metadata) {
  const std::string architecture = gguf_architecture(config);
  check_expressible(config, architecture);
  metadata.set_string("general.architecture", architecture);
  metadata.set_string("general.type", "model");
  const auto number = [&](const std::string& key, int64_t value) {
    metadata.set_u32(architecture + "." + key, static_cast<uint32_t>(value));
  };
  number("block_count", static_cast<int64_t>(config.layers.size()));
  // Readers need one; a model that states none was made for as long a text as one likes.
  number("context_length",
         config.max_position_embeddings > 0 ? config.max_position_embeddings : 1 << 17);
  number("embedding_length", config.hidden_size);
  number("feed_forward_length", config.intermediate_size);
  number("attention.head_count", config.num_attention_heads);
  number("attention.head_count_kv", config.num_key_value_heads);
  number("attention.key_length", config.head_dim);
  number("attention.value_length", config.head_dim);
  metadata.set_f32(architecture + ".attention.layer_norm_rms_epsilon",
                   static_cast<float>(config.rms_norm_eps));
  number("vocab_size", config.vocab_size);
  write_rope(config, architecture, metadata);
}

std::optional<Tensor> gguf_rope_divisors(const ModelConfig& config) {
  const RopeConfig& rope = config.ropes[0];
  if (rope_has_a_name(rope)) return std::nullopt;
  const std::vector<float> plain = unscaled_frequencies(
      rope.parameters.theta, static_cast<int64_t>(2 * rope.inverse_frequencies.size()));
  Tensor divisors = Tensor::empty(DType::kF32, {static_cast<int64_t>(plain.size())});
  for (size_t i = 0; i < plain.size(); ++i) {
    divisors.data<float>()[i] = plain[i] / rope.inverse_frequencies[i];
  }
  return divisors;
}

}  // namespace graft
