#include "train/flops_formula.h"

#include <unordered_set>

#include "models/layout.h"

namespace graft {
namespace {

class Counter {
 public:
  Counter(const StepOptions& options, const BatchShape& shape)
      : options_(options),
        shape_(shape),
        trained_(options.trained.begin(), options.trained.end()),
        rows_(static_cast<double>(shape.micro_batches * shape.batch_size * shape.sequence_length)),
        active_(trained_.contains(kEmbeddingName)) {}

  StepFlops run() {
    const ModelConfig& config = *options_.config;
    for (int64_t i = 0; i < static_cast<int64_t>(config.layers.size()); ++i) layer(i);
    active_ |= trains(kFinalNormName);
    const bool head_trained = trained_.contains(head_name(config));
    const double targets = static_cast<double>(shape_.micro_batches * shape_.targets);
    const double product =
        2 * targets * static_cast<double>(config.hidden_size * config.vocab_size);
    result_.head = product * (1 + (active_ || head_trained ? 1 : 0) + (head_trained ? 1 : 0));
    return result_;
  }

 private:
  bool trains(const std::string& name) const { return trained_.contains(name); }

  // Layers of a group read the same input: what they train matters to the next group only.
  void layer(int64_t index) {
    const LayerLayout layout = layer_layout(*options_.config, index);
    const std::string prefix = layer_prefix(index);
    const auto norm = [&](const char* name) { active_ |= trains(prefix + name + ".weight"); };
    const auto group = [&](std::initializer_list<const char*> names) {
      bool trained = false;
      for (const LinearModule& m : layout.linears) {
        for (const char* name : names) {
          if (m.name == name) trained |= linear(prefix, m);
        }
      }
      active_ |= trained;
    };
    norm("input_layernorm");
    group({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
    norm("self_attn.q_norm");
    norm("self_attn.k_norm");
    attention();
    group({"self_attn.o_proj"});
    norm("post_attention_layernorm");
    group({"mlp.gate_proj", "mlp.up_proj"});
    group({"mlp.down_proj"});
  }

  // Returns whether something of it is trained.
  bool linear(const std::string& prefix, const LinearModule& m) {
    const double product = 2 * rows_ * static_cast<double>(m.in * m.out);
    const bool weight = trains(prefix + m.name + ".weight");
    result_.forward += product;
    if (active_) result_.input_gradient += product;
    if (weight) result_.weight_gradient += product;
    const auto site = options_.lora.find(prefix + m.name);
    if (site == options_.lora.end()) return weight || trains(prefix + m.name + ".bias");
    const double a = 2 * rows_ * static_cast<double>(site->second.rank * m.in);
    const double b = 2 * rows_ * static_cast<double>(site->second.rank * m.out);
    // Forward, the factors' own gradients, and the way back: through B in any case, for A's
    // gradient; through A where the input needs one.
    result_.adapter += 2 * (a + b) + b + (active_ ? a : 0);
    return true;
  }

  void attention() {
    const ModelConfig& c = *options_.config;
    const double pairs =
        rows_ * static_cast<double>(shape_.sequence_length * c.num_attention_heads) / 2;
    // q k and p v; backward q k again, dv, dp, dq, dk.
    result_.attention += pairs * 2 * static_cast<double>(c.head_dim) * (active_ ? 7 : 2);
  }

  const StepOptions& options_;
  const BatchShape& shape_;
  const std::unordered_set<std::string> trained_;
  const double rows_;
  bool active_;  // something before this place is trained
  StepFlops result_;
};

}  // namespace

StepFlops step_flops(const StepOptions& options, const BatchShape& shape) {
  return Counter(options, shape).run();
}

}  // namespace graft
