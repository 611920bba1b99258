#include "train/step.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "ir/logical_axes.h"
#include "ir/passes.h"
#include "ir/primitives.h"
#include "ir/scan.h"
#include "ops/loss.h"

namespace graft {
namespace {

constexpr const char* kMicroBatchScope = "micro_batches";

class StepBuilder {
 public:
  StepBuilder(const StepOptions& options, const BatchShape& shape)
      : options_(options),
        shape_(shape),
        trained_(options.trained.begin(), options.trained.end()),
        graph_(std::make_unique<Graph>()) {
    GRAFT_CHECK(std::is_sorted(options.trained.begin(), options.trained.end()));
    for (const VariableSpec& v : options.parameters) add_variable(v);
    for (const VariableSpec& v : options.adapters) add_variable(v);
  }

  std::unique_ptr<Graph> train_step() {
    Graph& g = *graph_;
    add_moments();
    add_batch(shape_.micro_batches);
    const Value learning_rate = input(step_input::kLearningRate, DType::kF32, {});
    const Value c1 = input(step_input::kBiasCorrection1, DType::kF32, {});
    const Value c2 = input(step_input::kBiasCorrection2, DType::kF32, {});
    accumulate();

    std::vector<Value> squares;
    for (Value gradient : gradients_) squares.push_back(sum_squares(gradient));
    Value total = squares[0];
    for (size_t i = 1; i < squares.size(); ++i) total = total + squares[i];
    const Value norm = sqrt(total);
    const Value finite = is_finite(loss_) & is_finite(norm);
    Value clip = scalar(g, 1);
    if (options_.max_grad_norm > 0) {
      clip = minimum(clip, options_.max_grad_norm / (norm + 1e-6));
    }
    for (size_t i = 0; i < options_.trained.size(); ++i) {
      const std::string& name = options_.trained[i];
      const Value p = variables_.at(name), m = variables_.at(moment1_name(name)),
                  v = variables_.at(moment2_name(name));
      AdamWOptions adamw_options = options_.adamw;
      const auto& exempt = options_.no_decay;
      if (std::find(exempt.begin(), exempt.end(), name) != exempt.end())
        adamw_options.weight_decay = 0;
      const AdamWResult r =
          adamw({p, m, v, gradients_[i], clip, learning_rate, c1, c2, finite}, adamw_options);
      g.output(name, r.parameter, p);
      g.output(moment1_name(name), r.m, m);
      g.output(moment2_name(name), r.v, v);
    }
    g.output(step_output::kLoss, loss_);
    g.output(step_output::kGradNorm, norm);
    for (Value& square : squares) square = reshape(square, {1});
    g.output(step_output::kSquaredNorms, concatenate(squares, 0));
    g.output(step_output::kFinite, finite);
    if (options_.statistics) {
      g.output(step_output::kActivationRms, activation_rms_);
      g.output(step_output::kMaxAttentionLogit, max_logit_);
    }
    return finish();
  }

  std::unique_ptr<Graph> gradients_only() {
    add_batch(shape_.micro_batches);
    accumulate();
    graph_->output(step_output::kLoss, loss_);
    for (size_t i = 0; i < options_.trained.size(); ++i) {
      graph_->output("gradient." + options_.trained[i], gradients_[i]);
    }
    return finish();
  }

  std::unique_ptr<Graph> evaluation() {
    GRAFT_CHECK(shape_.micro_batches == 1);
    add_batch(1);
    const auto lookup = [&](const std::string& name) { return variables_.at(name); };
    const MicroBatch batch =
        micro_batch([&](const char* name) { return first_slice(variables_.at(name)); });
    const CrossEntropyResult result = loss_of(*graph_, batch, lookup, nullptr, nullptr);
    graph_->output(step_output::kLoss, result.loss);
    graph_->output("nll", result.nll);
    return finish();
  }

 private:
  struct MicroBatch {
    TokenInputs tokens;
    Value target_positions, targets, weights;
  };
  using Lookup = std::function<Value(const std::string&)>;

  Value input(const std::string& name, DType dtype, Shape shape,
              VariableKind kind = VariableKind::kData) {
    const Value v = graph_->input(name, {dtype, std::move(shape)}, kind);
    GRAFT_CHECK(variables_.emplace(name, v).second, "two inputs are named {}", name);
    return v;
  }

  void add_variable(const VariableSpec& v) { input(v.name, v.dtype, v.shape, v.kind); }

  void add_moments() {
    for (const std::string& name : options_.trained) {
      const Shape shape = variables_.at(name).shape();
      GRAFT_CHECK(variables_.at(name).dtype() == DType::kF32, "{} is trained in f32", name);
      input(moment1_name(name), DType::kF32, shape, VariableKind::kOptimizer);
      input(moment2_name(name), DType::kF32, shape, VariableKind::kOptimizer);
    }
  }

  void add_batch(int64_t m) {
    const Shape tokens{m, shape_.batch_size, shape_.sequence_length}, targets{m, shape_.targets};
    input(step_input::kInputIds, DType::kS32, tokens);
    input(step_input::kSegments, DType::kS32, tokens);
    input(step_input::kPositions, DType::kS32, tokens);
    input(step_input::kTargetPositions, DType::kS32, targets);
    input(step_input::kTargets, DType::kS32, targets);
    input(step_input::kWeights, DType::kF32, targets);
  }

  static MicroBatch micro_batch(const std::function<Value(const char*)>& get) {
    return {{get(step_input::kInputIds), get(step_input::kSegments), get(step_input::kPositions)},
            get(step_input::kTargetPositions),
            get(step_input::kTargets),
            get(step_input::kWeights)};
  }

  static Value first_slice(Value v) {
    return reshape(v, Shape(v.shape().begin() + 1, v.shape().end()));
  }

  bool has_dropout() const {
    return std::any_of(options_.lora.begin(), options_.lora.end(),
                       [](const auto& item) { return item.second.dropout > 0; });
  }

  // Weighted sum of the losses at the trained positions of one micro-batch.
  CrossEntropyResult loss_of(Graph& graph, const MicroBatch& batch, const Lookup& lookup,
                             const DropoutCounters* dropout, ForwardResult* forward_result) {
    ForwardOptions options;
    options.dtype = options_.dtype;
    options.lora = &options_.lora;
    options.packed = &options_.packed;
    options.trained = &trained_;
    if (dropout != nullptr) options.dropout = *dropout;
    options.statistics = options_.statistics && forward_result != nullptr;
    const ForwardResult result = forward(graph, *options_.config, batch.tokens, lookup, options);
    if (forward_result != nullptr) *forward_result = result;
    const auto scope = graph.scope("head");
    const Value rows = reshape(result.hidden, {-1, options_.config->hidden_size});
    const Value selected = with_logical_axes(gather(rows, batch.target_positions),
                                             {"activation_batch", "activation_embed"});
    Weight head = find_weight(lookup, &options_.packed, head_name(*options_.config));
    if (!head.layout) head.value = convert(head.value, options_.dtype);
    return cross_entropy(selected, head, batch.targets, batch.weights,
                         options_.config->final_softcap);
  }

  struct MicroResult {
    Value loss;
    std::vector<Value> gradients;  // f32, in the order of options_.trained
    ForwardResult forward;
  };

  MicroResult differentiate(Graph& graph, const MicroBatch& batch, const Lookup& lookup,
                            const DropoutCounters* dropout) {
    MicroResult result;
    result.loss = loss_of(graph, batch, lookup, dropout, &result.forward).loss;
    std::vector<Value> wrt;
    for (const std::string& name : options_.trained) wrt.push_back(lookup(name));
    result.gradients = graft::gradients(result.loss, wrt, {.remat = options_.remat});
    for (Value& g : result.gradients) g = convert(g, DType::kF32);
    return result;
  }

  // Sets loss_, gradients_ and the statistics: one micro-batch directly, several by a scan.
  void accumulate() {
    Value seed, step;
    if (has_dropout()) {
      seed = input(step_input::kSeed, DType::kU32, {2}, VariableKind::kRng);
      step = input(step_input::kStep, DType::kU32, {}, VariableKind::kRng);
    }
    if (shape_.micro_batches == 1) {
      const DropoutCounters counters{seed, scalar(*graph_, 0, DType::kU32), step, {}};
      const MicroResult r = differentiate(
          *graph_, micro_batch([&](const char* name) { return first_slice(variables_.at(name)); }),
          [&](const std::string& name) { return variables_.at(name); },
          has_dropout() ? &counters : nullptr);
      loss_ = r.loss;
      gradients_ = r.gradients;
      if (options_.statistics) {
        activation_rms_ = reshape(r.forward.activation_rms, {1, -1});
        max_logit_ = reshape(r.forward.max_attention_logit, {1, -1});
      }
      return;
    }
    accumulate_by_scan(seed, step);
  }

  void accumulate_by_scan(Value seed, Value step) {
    const auto scope = graph_->scope(kMicroBatchScope);
    ScanOperands operands;
    operands.carries.push_back(scalar(*graph_, 0));
    for (const std::string& name : options_.trained) {
      operands.carries.push_back(splat(*graph_, 0, {DType::kF32, variables_.at(name).shape()}));
    }
    std::map<std::string, size_t> invariant;
    for (const auto* list : {&options_.parameters, &options_.adapters}) {
      for (const VariableSpec& v : *list) {
        invariant[v.name] = operands.invariants.size();
        operands.invariants.push_back(variables_.at(v.name));
      }
    }
    const char* names[] = {step_input::kInputIds,  step_input::kSegments,
                           step_input::kPositions, step_input::kTargetPositions,
                           step_input::kTargets,   step_input::kWeights};
    std::map<std::string, size_t> stacked;
    for (const char* name : names) {
      stacked[name] = operands.stacked.size();
      operands.stacked.push_back(variables_.at(name));
    }
    const size_t rng = operands.invariants.size();
    if (has_dropout()) {
      operands.invariants.push_back(seed);
      operands.invariants.push_back(step);
      // Rows are numbered through the whole step, so that a mask does not depend on the split.
      const Value first_rows = iota(*graph_, {DType::kU32, {shape_.micro_batches}}, 0) *
                               scalar(*graph_, static_cast<double>(shape_.batch_size), DType::kU32);
      operands.stacked.push_back(first_rows);
    }
    const ScanResults results = scan(*graph_, shape_.micro_batches, operands, [&](ScanBody& body) {
      DropoutCounters counters;
      if (has_dropout()) {
        counters = {body.invariant(rng), body.stacked(stacked.size()), body.invariant(rng + 1), {}};
      }
      const MicroResult r = differentiate(
          body.graph(),
          micro_batch([&](const char* name) { return body.stacked(stacked.at(name)); }),
          [&](const std::string& name) { return body.invariant(invariant.at(name)); },
          has_dropout() ? &counters : nullptr);
      body.carry_out(0, body.carry(0) + r.loss);
      for (size_t i = 0; i < r.gradients.size(); ++i) {
        body.carry_out(i + 1, body.carry(i + 1) + r.gradients[i]);
      }
      if (options_.statistics) {
        body.stacked_out(r.forward.activation_rms);
        body.stacked_out(r.forward.max_attention_logit);
      }
    });
    loss_ = results.carries[0];
    gradients_.assign(results.carries.begin() + 1, results.carries.end());
    if (options_.statistics) {
      activation_rms_ = results.stacked[0];
      max_logit_ = results.stacked[1];
    }
  }

  // Simplifies, and runs layers as straight code if asked. Unrolling comes last: merging afterwards
  // would undo rematerialisation.
  std::unique_ptr<Graph> finish() {
    verify(*graph_);
    std::unique_ptr<Graph> graph = eliminate_dead_code(*merge_common_subexpressions(*graph_));
    if (options_.scan_layers) return graph;
    return unroll_scans(*graph, [](const Node& node) { return node.scope == kMicroBatchScope; });
  }

  const StepOptions& options_;
  const BatchShape shape_;
  const std::unordered_set<std::string> trained_;
  std::unique_ptr<Graph> graph_;
  std::map<std::string, Value> variables_;  // every input by name
  Value loss_, activation_rms_, max_logit_;
  std::vector<Value> gradients_;
};

}  // namespace

std::unique_ptr<Graph> build_train_step(const StepOptions& options, const BatchShape& shape) {
  return StepBuilder(options, shape).train_step();
}
std::unique_ptr<Graph> build_evaluation(const StepOptions& options, const BatchShape& shape) {
  return StepBuilder(options, shape).evaluation();
}
std::unique_ptr<Graph> build_gradients(const StepOptions& options, const BatchShape& shape) {
  return StepBuilder(options, shape).gradients_only();
}

std::string moment1_name(const std::string& variable) { return variable + ".adam_m"; }
std::string moment2_name(const std::string& variable) { return variable + ".adam_v"; }

}  // namespace graft
