#pragma once
// Which parameters a model has: their Hugging Face names, shapes and logical axes, layer by layer.

#include <string>
#include <vector>

#include "ir/variable.h"
#include "models/config.h"

namespace graft {

// A linear layer; its parameters are <name>.weight [out, in] and, with bias, <name>.bias [out].
// Names are relative to the layer ("self_attn.q_proj") in a LayerLayout and full in all_linears().
struct LinearModule {
  std::string name;
  int64_t in = 0, out = 0;
  bool bias = false;
  std::string in_axis, out_axis;  // logical axes, for sharding
};

struct NormModule {
  std::string name;
  int64_t size = 0;
};

struct LayerLayout {
  std::vector<LinearModule> linears;
  std::vector<NormModule> norms;
};

inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
inline constexpr const char* kFinalNormName = "model.norm.weight";
inline constexpr const char* kHeadName = "lm_head.weight";

std::string layer_prefix(int64_t layer);  // "model.layers.7."
LayerLayout layer_layout(const ModelConfig& config, int64_t layer);

// Every linear layer of the decoder by full name, in order; the head is not among them.
std::vector<LinearModule> all_linears(const ModelConfig& config);

// Every parameter in order: embedding, layers, final norm, head (absent when tied). Types are f32.
std::vector<VariableSpec> base_parameters(const ModelConfig& config);

}  // namespace graft
