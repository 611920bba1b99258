#include "models/model.h"

#include <cmath>

#include "base/random.h"
#include "ir/logical_axes.h"
#include "ir/primitives.h"
#include "models/layer.h"
#include "models/layout.h"
#include "models/stack.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace graft {
namespace {

// Small constants of the graph, one value for each distinct number, so that equal per-layer
// operands are recognised as invariant.
class Constants {
 public:
  explicit Constants(Graph& graph) : graph_(graph) {}
  Value get(double value, DType dtype) {
    Value& v = values_[{value, dtype}];
    if (!v.defined()) v = scalar(graph_, value, dtype);
    return v;
  }

 private:
  Graph& graph_;
  std::map<std::pair<double, DType>, Value> values_;
};

class Forward {
 public:
  Forward(Graph& graph, const ModelConfig& config, const TokenInputs& tokens,
          const VariableLookup& variable, const ForwardOptions& options, const CacheInputs* cache)
      : graph_(graph),
        config_(config),
        tokens_(tokens),
        variable_(variable),
        options_(options),
        cache_(cache),
        constants_(graph) {}

  ForwardResult run() {
    for (const RopeConfig& rope : config_.ropes) {
      const Value inverse =
          literal(graph_, Tensor::of<float>({static_cast<int64_t>(rope.inverse_frequencies.size())},
                                            rope.inverse_frequencies));
      tables_.push_back(rope_table(tokens_.positions, inverse, rope.attention_factor));
    }
    Value x = embedding(find_weight(variable_, options_.packed, kEmbeddingName), tokens_.ids,
                        options_.dtype);
    if (config_.embedding_scale != 1) x = x * config_.embedding_scale;
    x = with_logical_axes(x, {"activation_batch", "activation_length", "activation_embed"});
    const int64_t layers = static_cast<int64_t>(config_.layers.size());
    for (int64_t first = 0, last = 0; first < layers; first = last) {
      const std::string structure = layer_structure(first);
      for (last = first + 1; last < layers && layer_structure(last) == structure;) ++last;
      x = run_stack(first, last, x);
    }
    const RmsNormOptions norm{config_.rms_norm_eps, config_.norm_offset,
                              config_.norm_rounds_before_weight};
    ForwardResult result;
    result.hidden = rms_norm(x, convert(variable_(kFinalNormName), options_.dtype), norm);
    if (options_.statistics) {
      result.activation_rms = concatenate(activation_rms_, 0);
      result.max_attention_logit = concatenate(max_logits_, 0);
    }
    result.cache_keys = std::move(cache_keys_);
    result.cache_values = std::move(cache_values_);
    return result;
  }

 private:
  const LoraSite* site(const std::string& module) const {
    if (options_.lora == nullptr) return nullptr;
    const auto it = options_.lora->find(module);
    return it == options_.lora->end() ? nullptr : &it->second;
  }

  const PackedLayout* layout_of(const std::string& parameter) const {
    if (options_.packed == nullptr) return nullptr;
    const auto it = options_.packed->find(parameter);
    return it == options_.packed->end() ? nullptr : &it->second;
  }

  bool trains(const std::string& variable) const {
    return options_.trained != nullptr && options_.trained->contains(variable);
  }

  // Layers with equal texts can share a scan.
  std::string layer_structure(int64_t layer) const {
    const LayerLayout layout = layer_layout(config_, layer);
    const std::string prefix = layer_prefix(layer);
    std::string text;
    for (const LinearModule& m : layout.linears) {
      text += fmt::format("{}[{},{}]{}{}", m.name, m.out, m.in, m.bias ? "b" : "",
                          trains(prefix + m.name + ".weight") ? "*" : "");
      if (const PackedLayout* packed = layout_of(prefix + m.name + ".weight")) {
        text += "=" + packed->text();
      }
      if (m.bias && trains(prefix + m.name + ".bias")) text += "b*";
      if (const LoraSite* lora = site(prefix + m.name)) {
        text += fmt::format("+{}:{}", lora->rank, lora->dropout);
      }
      text += ' ';
    }
    for (const NormModule& m : layout.norms) {
      text += m.name + (trains(prefix + m.name + ".weight") ? "* " : " ");
    }
    return text;
  }

  StackOperands stack_operands(int64_t first, int64_t last) {
    StackOperands operands;
    const auto each_layer = [&](const std::string& name, auto value_of_layer) {
      std::vector<Value> values;
      for (int64_t i = first; i < last; ++i) values.push_back(value_of_layer(i));
      operands.per_layer(name, values);
    };
    const auto parameter = [&](const std::string& name) {
      each_layer(name, [&](int64_t i) { return variable_(layer_prefix(i) + name); });
    };
    const LayerLayout layout = layer_layout(config_, first);
    for (const LinearModule& m : layout.linears) {
      parameter(m.name + ".weight");
      if (m.bias) parameter(m.name + ".bias");
      const LoraSite* lora = site(layer_prefix(first) + m.name);
      if (lora == nullptr) continue;
      parameter(m.name + ".lora_A");
      parameter(m.name + ".lora_B");
      each_layer(m.name + ".lora_scale", [&](int64_t i) {
        return constants_.get(site(layer_prefix(i) + m.name)->scale, DType::kF32);
      });
      if (lora->dropout > 0 && options_.dropout) {
        each_layer(m.name + ".name_hash", [&](int64_t i) {
          return constants_.get(fnv1a_32(layer_prefix(i) + m.name), DType::kU32);
        });
      }
    }
    for (const NormModule& m : layout.norms) parameter(m.name + ".weight");
    each_layer("window", [&](int64_t i) { return constants_.get(layer(i).window, DType::kS32); });
    each_layer("rope.cos", [&](int64_t i) { return tables_[rope_index(i)].cos; });
    each_layer("rope.sin", [&](int64_t i) { return tables_[rope_index(i)].sin; });
    operands.shared("segments", tokens_.segments);
    operands.shared("offset", cache_ ? cache_->offset : constants_.get(0, DType::kS32));
    if (options_.dropout) {
      operands.shared("dropout.seed", options_.dropout->seed);
      operands.shared("dropout.first_row", options_.dropout->first_row);
      operands.shared("dropout.step", options_.dropout->step);
    }
    if (cache_ != nullptr) {
      operands.shared("key_segments", cache_->key_segments);
      each_layer("cache.k", [&](int64_t i) { return cache_->keys.at(static_cast<size_t>(i)); });
      each_layer("cache.v", [&](int64_t i) { return cache_->values.at(static_cast<size_t>(i)); });
    }
    return operands;
  }

  double stack_dropout(int64_t first) const {
    for (const LinearModule& m : layer_layout(config_, first).linears) {
      if (const LoraSite* lora = site(layer_prefix(first) + m.name)) return lora->dropout;
    }
    return 0;
  }

  Value run_stack(int64_t first, int64_t last, Value x) {
    const auto scope = graph_.scope("layers");
    StackOperands operands = stack_operands(first, last);
    operands.operands().carries = {x};
    const double dropout = stack_dropout(first);
    const ScanResults results =
        scan(graph_, last - first, operands.operands(), [&](ScanBody& body) {
          const LayerContext context{
              body.graph(),
              config_,
              options_,
              [&](const std::string& name) { return operands.has(name); },
              [&](const std::string& name) { return operands.get(body, name); },
              [&](const std::string& name) { return layout_of(layer_prefix(first) + name); },
              dropout};
          const LayerOutput out = decoder_layer(context, body.carry(0));
          body.carry_out(0, out.x);
          if (options_.statistics) {
            const Value wide = convert(out.x, DType::kF32);
            const Value square = reduce_sum(wide * wide, {0, 1, 2});
            body.stacked_out(sqrt(square / static_cast<double>(wide.type().elements())));
            body.stacked_out(out.max_logit);
          }
          if (cache_ != nullptr) {
            body.list_out(out.cache_key);
            body.list_out(out.cache_value);
          }
        });
    if (options_.statistics) {
      activation_rms_.push_back(results.stacked[0]);
      max_logits_.push_back(results.stacked[1]);
    }
    if (cache_ != nullptr) {
      cache_keys_.insert(cache_keys_.end(), results.lists[0].begin(), results.lists[0].end());
      cache_values_.insert(cache_values_.end(), results.lists[1].begin(), results.lists[1].end());
    }
    return results.carries[0];
  }

  const LayerConfig& layer(int64_t i) const { return config_.layers[static_cast<size_t>(i)]; }
  size_t rope_index(int64_t i) const { return static_cast<size_t>(layer(i).rope); }

  Graph& graph_;
  const ModelConfig& config_;
  const TokenInputs& tokens_;
  const VariableLookup& variable_;
  const ForwardOptions& options_;
  const CacheInputs* cache_;
  Constants constants_;
  std::vector<RopeTable> tables_;
  std::vector<Value> activation_rms_, max_logits_, cache_keys_, cache_values_;
};

}  // namespace

ForwardResult forward(Graph& graph, const ModelConfig& config, const TokenInputs& tokens,
                      const VariableLookup& variable, const ForwardOptions& options,
                      const CacheInputs* cache) {
  return Forward(graph, config, tokens, variable, options, cache).run();
}

Weight find_weight(const VariableLookup& variable, const PackedLayouts* packed,
                   const std::string& name) {
  Weight weight(variable(name));
  if (packed == nullptr) return weight;
  const auto found = packed->find(name);
  if (found != packed->end()) weight.layout = found->second;
  return weight;
}

std::string head_name(const ModelConfig& config) {
  return config.tie_word_embeddings ? kEmbeddingName : kHeadName;
}

Value logits(const ModelConfig& config, Value hidden, const Weight& head) {
  const int64_t last = hidden.rank() - 1;
  Value scores = head.layout
                     ? linear(convert(hidden, DType::kF32), head)
                     : dot_general(hidden, convert(head.value, hidden.dtype()),
                                   {.lhs_contract = {last}, .rhs_contract = {1}}, DType::kF32);
  if (config.final_softcap > 0) scores = tanh(scores / config.final_softcap) * config.final_softcap;
  return scores;
}

}  // namespace graft
