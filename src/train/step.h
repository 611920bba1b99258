#pragma once
// The train step as one graph: (state, batch, scalars) -> (new state, metrics).
//
// Micro-batches are a scan inside it; each adds its share of the loss, normalised by the trained
// tokens of the whole step, which the host counts beforehand and gives as weights. The step guards
// itself: where the loss or the gradient norm is not finite, the state comes out bit for bit as it
// went in.
//
// Inputs by name: every variable under its own name (parameters, adapters, and for each trained
// variable <name>.adam_m and <name>.adam_v), then the data inputs below. Outputs: the trained
// variables and moments (in place of their inputs), and the metrics below.

#include <memory>
#include <string>
#include <vector>

#include "ir/autodiff.h"
#include "ir/graph.h"
#include "models/model.h"
#include "ops/optimizer.h"

namespace graft {

// The shapes of a step's batch; see data/batches.h.
struct BatchShape {
  int64_t micro_batches = 1, batch_size = 1, sequence_length = 64, targets = 128;
  auto operator<=>(const BatchShape&) const = default;
};

namespace step_input {
inline constexpr const char* kInputIds = "input_ids";                // s32 [M, B, S]
inline constexpr const char* kSegments = "segment_ids";              // s32 [M, B, S]
inline constexpr const char* kPositions = "positions";               // s32 [M, B, S]
inline constexpr const char* kTargetPositions = "target_positions";  // s32 [M, N]
inline constexpr const char* kTargets = "targets";                   // s32 [M, N], -1: none
inline constexpr const char* kWeights = "weights";             // f32 [M, N]: 1 / trained tokens
inline constexpr const char* kLearningRate = "learning_rate";  // f32 []
inline constexpr const char* kBiasCorrection1 = "bias_correction1";  // f32 []: 1 - beta1^t
inline constexpr const char* kBiasCorrection2 = "bias_correction2";
inline constexpr const char* kSeed = "seed";  // u32 [2], with dropout only
inline constexpr const char* kStep = "step";  // u32 [], with dropout only
}  // namespace step_input

namespace step_output {
inline constexpr const char* kLoss = "loss";           // f32 []: nats per trained token
inline constexpr const char* kGradNorm = "grad_norm";  // f32 []: before clipping
inline constexpr const char* kSquaredNorms =
    "squared_norms";                              // f32 [trained variables], in name order
inline constexpr const char* kFinite = "finite";  // bool []
inline constexpr const char* kActivationRms = "activation_rms";           // f32 [M, layers]
inline constexpr const char* kMaxAttentionLogit = "max_attention_logit";  // f32 [M, layers]
}  // namespace step_output

struct StepOptions {
  const ModelConfig* config = nullptr;
  DType dtype = DType::kF32;  // of activations
  LoraSites lora;
  std::vector<VariableSpec> parameters;  // of the base, with the dtype that they are held in
  PackedLayouts packed;                  // of those held packed
  std::vector<VariableSpec> adapters;
  std::vector<std::string> trained;   // names, sorted
  std::vector<std::string> no_decay;  // of the trained: exempt from weight decay
  AdamWOptions adamw;
  double max_grad_norm = 1;  // 0: no clipping
  Remat remat = Remat::kMinimal;
  bool scan_layers = true;
  bool statistics = false;
};

std::unique_ptr<Graph> build_train_step(const StepOptions& options, const BatchShape& shape);

// Loss alone, over one batch [B, S]: outputs "loss" (sum of nats over the targets), "nll" f32 [N].
std::unique_ptr<Graph> build_evaluation(const StepOptions& options, const BatchShape& shape);

// Gradients without an update, for inspection and tests: outputs loss and "gradient.<name>".
std::unique_ptr<Graph> build_gradients(const StepOptions& options, const BatchShape& shape);

std::string moment1_name(const std::string& variable);  // "<variable>.adam_m"
std::string moment2_name(const std::string& variable);

}  // namespace graft
