#pragma once
// What of a run's state goes into a checkpoint, and where, by kind.
//
//   const StateParts parts = split_state(variables, {.save_base = false});
//   parts.adapters.at("model.layers.0.self_attn.q_proj.lora_A");
//
// Parameters, adapters and optimiser moments belong together: they are the state after one step.
// Random state and batch statistics stand apart, since a run may begin from another's weights
// without them. Intermediates, caches and data are dropped, and so is what is not trained: the base
// is referred to, unless it is asked for.

#include <string>
#include <vector>

#include "adapters/adapter_file.h"
#include "base/tensor.h"
#include "ir/variable.h"

namespace graft {

struct StateVariable {
  std::string name;
  VariableKind kind = VariableKind::kParam;
  bool trained = false;  // adapters and moments belong to what is trained in any case
  Tensor value;
};

struct SplitOptions {
  bool save_base = false;  // frozen parameters too
};

struct StateParts {
  NamedTensors params, adapters, optimizer;
  NamedTensors random, batch_stats;
  NamedTensors base;                 // frozen parameters, where asked for
  std::vector<std::string> dropped;  // names, in the order given
};

// Tensors are shared, not copied. Raises Error where a name is given twice.
StateParts split_state(const std::vector<StateVariable>& variables,
                       const SplitOptions& options = {});

}  // namespace graft
