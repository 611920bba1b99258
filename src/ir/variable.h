#pragma once
// Variables: the named state of a run. A variable is always addressed by its per-layer Hugging Face
// name
// ("model.layers.7.self_attn.q_proj.weight", "...q_proj.lora_A"), however an executor stores it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"

namespace graft {

enum class VariableKind : uint8_t {
  kData,          // not state: a batch or a scalar of this step
  kParam,         // the base model's weights
  kAdapter,       // low-rank factors and whatever else is trained beside a frozen base
  kOptimizer,     // moments
  kRng,           // seeds and counters
  kBatchStat,     // running statistics
  kIntermediate,  // values collected for inspection; never saved
  kCache,         // keys and values of decoding; never saved
};
std::string_view variable_kind_name(VariableKind kind);  // "param", "adapter", ...

struct VariableSpec {
  std::string name;
  VariableKind kind = VariableKind::kParam;
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<std::string>
      logical_axes;  // one a dimension: "embed", "mlp", "vocab", ... ; "" replicated
};

}  // namespace graft
