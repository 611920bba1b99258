#include "models/layout.h"

#include <fmt/format.h>

namespace graft {

std::string layer_prefix(int64_t layer) { return fmt::format("model.layers.{}.", layer); }

LayerLayout layer_layout(const ModelConfig& c, int64_t) {
  LayerLayout layout;
  const int64_t d = c.hidden_size, q = c.query_width(), kv = c.key_value_width(),
                mlp = c.intermediate_size;
  layout.linears = {
      {"self_attn.q_proj", d, q, c.qkv_bias, "embed", "heads"},
      {"self_attn.k_proj", d, kv, c.qkv_bias, "embed", "kv_heads"},
      {"self_attn.v_proj", d, kv, c.qkv_bias, "embed", "kv_heads"},
      {"self_attn.o_proj", q, d, c.o_bias, "heads", "embed"},
      {"mlp.gate_proj", d, mlp, c.mlp_bias, "embed", "mlp"},
      {"mlp.up_proj", d, mlp, c.mlp_bias, "embed", "mlp"},
      {"mlp.down_proj", mlp, d, c.mlp_bias, "mlp", "embed"},
  };
  layout.norms = {{"input_layernorm", d}, {"post_attention_layernorm", d}};
  if (c.qk_norm == QkNorm::kPerHead) {
    layout.norms.push_back({"self_attn.q_norm", c.head_dim});
    layout.norms.push_back({"self_attn.k_norm", c.head_dim});
  }
  return layout;
}

std::vector<LinearModule> all_linears(const ModelConfig& config) {
  std::vector<LinearModule> linears;
  for (int64_t i = 0; i < static_cast<int64_t>(config.layers.size()); ++i) {
    for (LinearModule linear : layer_layout(config, i).linears) {
      linear.name = layer_prefix(i) + linear.name;
      linears.push_back(std::move(linear));
    }
  }
  return linears;
}

std::vector<VariableSpec> base_parameters(const ModelConfig& config) {
  std::vector<VariableSpec> specs;
  const auto add = [&](std::string name, Shape shape, std::vector<std::string> axes) {
    specs.push_back(
        {std::move(name), VariableKind::kParam, DType::kF32, std::move(shape), std::move(axes)});
  };
  add(kEmbeddingName, {config.vocab_size, config.hidden_size}, {"vocab", "embed"});
  for (int64_t i = 0; i < static_cast<int64_t>(config.layers.size()); ++i) {
    const std::string prefix = layer_prefix(i);
    const LayerLayout layout = layer_layout(config, i);
    for (const LinearModule& m : layout.linears) {
      add(prefix + m.name + ".weight", {m.out, m.in}, {m.out_axis, m.in_axis});
      if (m.bias) add(prefix + m.name + ".bias", {m.out}, {m.out_axis});
    }
    for (const NormModule& m : layout.norms) add(prefix + m.name + ".weight", {m.size}, {"norm"});
  }
  add(kFinalNormName, {config.hidden_size}, {"norm"});
  if (!config.tie_word_embeddings)
    add(kHeadName, {config.vocab_size, config.hidden_size}, {"vocab", "embed"});
  return specs;
}

}  // namespace graft
