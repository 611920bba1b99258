#pragma once
// One decoder layer as graph operations, on operands that it asks for by name.

#include <functional>
#include <string>

#include "models/config.h"
#include "models/model.h"
#include "ops/rope.h"

namespace graft {

// What a layer's code sees of its surroundings.
struct LayerContext {
  Graph& graph;
  const ModelConfig& config;
  const ForwardOptions& options;
  std::function<bool(const std::string&)> has;
  std::function<Value(const std::string&)> get;  // "mlp.up_proj.weight", "window", "rope.cos", ...
  // Of a parameter that is held packed, else null.
  std::function<const PackedLayout*(const std::string&)> layout;
  double dropout = 0;  // of this stack's adapters
};

struct LayerOutput {
  Value x;                       // [B, S, hidden]
  Value max_logit;               // f32 []
  Value cache_key, cache_value;  // [B, T, K, D] with a cache, else undefined
};

LayerOutput decoder_layer(const LayerContext& context, Value x);

}  // namespace graft
