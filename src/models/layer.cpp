#include "models/layer.h"

#include "ir/logical_axes.h"
#include "ir/primitives.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/norm.h"

namespace graft {
namespace {

Value apply_linear(const LayerContext& c, const std::string& name, Value x) {
  const auto scope = c.graph.scope(name);
  Weight weight(c.get(name + ".weight"));
  if (const PackedLayout* layout = c.layout(name + ".weight")) {
    weight.layout = *layout;
  } else {
    weight.value = convert(weight.value, c.options.dtype);
  }
  Value bias;
  if (c.has(name + ".bias")) bias = convert(c.get(name + ".bias"), c.options.dtype);
  if (!c.has(name + ".lora_A")) return linear(x, weight, bias);
  LoraOperands lora{
      c.get(name + ".lora_A"), c.get(name + ".lora_B"), c.get(name + ".lora_scale"), {}};
  if (c.has(name + ".name_hash")) {
    DropoutCounters counters{c.get("dropout.seed"), c.get("dropout.first_row"),
                             c.get("dropout.step"), c.get(name + ".name_hash")};
    lora.input = dropout(x, c.dropout, counters);
  }
  return linear(x, weight, bias, &lora);
}

Value apply_norm(const LayerContext& c, const std::string& name, Value x) {
  const auto scope = c.graph.scope(name);
  const RmsNormOptions options{c.config.rms_norm_eps, c.config.norm_offset,
                               c.config.norm_rounds_before_weight};
  return rms_norm(x, convert(c.get(name + ".weight"), c.options.dtype), options);
}

// x: [B, S, width of all heads]; result [B, S, heads, head_dim]
Value split_heads(Value x, int64_t heads, const char* axis) {
  const Value split = reshape(x, {x.dim(0), x.dim(1), heads, x.dim(2) / heads});
  return with_logical_axes(split, {"activation_batch", "activation_length", axis, ""});
}

Value with_width(Value x, const char* axis) {
  return with_logical_axes(x, {"activation_batch", "activation_length", axis});
}

struct AttentionOutput {
  Value out, max_logit, cache_key, cache_value;
};

// x: [B, S, hidden], normalised
AttentionOutput attention_block(const LayerContext& c, Value x) {
  const ModelConfig& config = c.config;
  Value q = split_heads(apply_linear(c, "self_attn.q_proj", x), config.num_attention_heads,
                        "activation_heads");
  Value k = split_heads(apply_linear(c, "self_attn.k_proj", x), config.num_key_value_heads,
                        "activation_kv_heads");
  Value v = split_heads(apply_linear(c, "self_attn.v_proj", x), config.num_key_value_heads,
                        "activation_kv_heads");
  if (config.qk_norm == QkNorm::kPerHead) {
    q = apply_norm(c, "self_attn.q_norm", q);
    k = apply_norm(c, "self_attn.k_norm", k);
  }
  const RopeTable table{c.get("rope.cos"), c.get("rope.sin")};
  const bool interleaved = config.ropes[0].interleaved;
  q = rope(q, table, interleaved);
  k = rope(k, table, interleaved);

  AttentionOutput result;
  AttentionMask mask{c.get("segments"), c.get("segments"), c.get("window"), c.get("offset")};
  if (c.has("cache.k")) {
    const Value zero = scalar(c.graph, 0, DType::kS32);
    const std::vector<Value> starts{zero, mask.query_offset, zero, zero};
    k = result.cache_key = dynamic_update_slice(c.get("cache.k"), k, starts);
    v = result.cache_value = dynamic_update_slice(c.get("cache.v"), v, starts);
    mask.key_segments = c.get("key_segments");
  }
  const AttentionResult a =
      attention(q, k, v, mask, {config.attention_scale, config.attention_softcap});
  const Value joined =
      with_width(reshape(a.out, {x.dim(0), x.dim(1), config.query_width()}), "activation_heads");
  result.out = apply_linear(c, "self_attn.o_proj", joined);
  result.max_logit = a.max_logit;
  return result;
}

Value mlp_block(const LayerContext& c, Value x) {
  const Value gate = apply_linear(c, "mlp.gate_proj", x);
  const Value up = apply_linear(c, "mlp.up_proj", x);
  const Value product = gated_activation(gate, up, c.config.activation);
  return apply_linear(c, "mlp.down_proj", with_width(product, "activation_mlp"));
}

}  // namespace

LayerOutput decoder_layer(const LayerContext& c, Value x) {
  const AttentionOutput a = attention_block(c, apply_norm(c, "input_layernorm", x));
  x = with_width(x + a.out, "activation_embed");
  x = x + mlp_block(c, apply_norm(c, "post_attention_layernorm", x));
  x = with_width(x, "activation_embed");
  return {x, a.max_logit, a.cache_key, a.cache_value};
}

}  // namespace graft
