#include "ir/variable.h"

namespace graft {

std::string_view variable_kind_name(VariableKind kind) {
  switch (kind) {
    case VariableKind::kData: return "data";
    case VariableKind::kParam: return "param";
    case VariableKind::kAdapter: return "adapter";
    case VariableKind::kOptimizer: return "optimizer";
    case VariableKind::kRng: return "rng";
    case VariableKind::kBatchStat: return "batch_stat";
    case VariableKind::kIntermediate: return "intermediate";
    case VariableKind::kCache: return "cache";
  }
  return "?";
}

}  // namespace graft
