#include "checkpoint/state_split.h"

#include "base/error.h"

namespace graft {
namespace {

// Where a variable goes; null: nowhere.
NamedTensors* place_of(StateParts& parts, const StateVariable& variable, bool save_base) {
  switch (variable.kind) {
    case VariableKind::kParam:
      if (variable.trained) return &parts.params;
      return save_base ? &parts.base : nullptr;
    case VariableKind::kAdapter: return &parts.adapters;
    case VariableKind::kOptimizer: return &parts.optimizer;
    case VariableKind::kRng: return &parts.random;
    case VariableKind::kBatchStat: return &parts.batch_stats;
    case VariableKind::kData:
    case VariableKind::kIntermediate:
    case VariableKind::kCache: return nullptr;
  }
  return nullptr;
}

}  // namespace

StateParts split_state(const std::vector<StateVariable>& variables, const SplitOptions& options) {
  StateParts parts;
  for (const StateVariable& variable : variables) {
    NamedTensors* place = place_of(parts, variable, options.save_base);
    if (place == nullptr) {
      parts.dropped.push_back(variable.name);
    } else if (!place->emplace(variable.name, variable.value).second) {
      throw Error(fmt::format("the state holds \"{}\" twice", variable.name));
    }
  }
  return parts;
}

}  // namespace graft
