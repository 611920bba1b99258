#pragma once
// The forward pass of a decoder as a graph: embedding, stacks of layers, final norm.
//
// Consecutive layers of the same structure (parameters, adapters, what is trained) form one scan
// over their parameters; what differs in numbers alone (window, rotary table, LoRA scale) is a
// per-layer operand. So a model is one scan where its layers are alike, and is split where training
// begins.
//
//   Graph g;
//   ModelGraph model(g, config, {.dtype = DType::kF32}, [&](const std::string& name) { return
//   state.at(name); }); Value hidden = model.forward(tokens).hidden;           // [B, S,
//   hidden_size]

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "ir/graph.h"
#include "models/config.h"
#include "ops/dropout.h"
#include "ops/unpack.h"

namespace graft {

// A low-rank adapter on one linear layer; its factors are <module>.lora_A [rank, in] and
// <module>.lora_B [out, rank].
struct LoraSite {
  int64_t rank = 0;
  double scale = 0;
  double dropout = 0;
};
using LoraSites = std::map<std::string, LoraSite>;  // by full module name

struct TokenInputs {
  Value ids;        // s32 [B, S]
  Value segments;   // s32 [B, S], 0 for padding
  Value positions;  // s32 [B, S], for the rotary embedding
};

// Keys and values of earlier tokens, for decoding; one sequence a row, one pair of variables a
// layer: cache.<layer>.k and .v, [B, T, K, D].
struct CacheInputs {
  std::vector<Value> keys, values;  // by layer
  Value key_segments;               // s32 [B, T]
  Value offset;                     // s32 []: tokens already in the cache
};

// Matrices that are held packed, by full parameter name.
using PackedLayouts = std::map<std::string, PackedLayout>;

struct ForwardOptions {
  DType dtype = DType::kF32;  // of activations
  const LoraSites* lora = nullptr;
  const PackedLayouts* packed = nullptr;   // none: every weight is dense
  std::optional<DropoutCounters> dropout;  // name_hash unused; none: no dropout (evaluation)
  bool statistics = false;
  // Names of trained variables, so that a stack begins where training does.
  const std::unordered_set<std::string>* trained = nullptr;
};

struct ForwardResult {
  Value hidden;  // [B, S, hidden_size], after the final norm
  // Collected with options.statistics: f32 [layers], in layer order.
  Value activation_rms, max_attention_logit;
  std::vector<Value> cache_keys, cache_values;  // by layer, after this call's tokens
};

using VariableLookup = std::function<Value(const std::string& name)>;

// A matrix by name as operations take it, dense or packed.
Weight find_weight(const VariableLookup& variable, const PackedLayouts* packed,
                   const std::string& name);

ForwardResult forward(Graph& graph, const ModelConfig& config, const TokenInputs& tokens,
                      const VariableLookup& variable, const ForwardOptions& options,
                      const CacheInputs* cache = nullptr);

// The output head's weight: lm_head.weight, or the embedding where they are tied; [vocab, hidden].
std::string head_name(const ModelConfig& config);

// Logits [..., vocab] in f32, whole: for inspection and decoding, never for a training batch.
Value logits(const ModelConfig& config, Value hidden, const Weight& head);

}  // namespace graft
