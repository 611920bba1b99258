#include "sharding/rules.h"

#include <utility>

namespace graft {

const AxisRules& default_axis_rules() {
  static const AxisRules kRules = {
      {"activation_batch", {"data", "fsdp"}},
      {"activation_length", {"context"}},
      {"activation_embed", {"tensor"}},
      {"activation_heads", {"tensor"}},
      {"activation_kv_heads", {"tensor"}},
      {"activation_mlp", {"tensor"}},
      {"activation_vocab", {"tensor"}},
      {"mlp", {"tensor"}},
      {"vocab", {"tensor"}},
      {"heads", {"tensor"}},
      {"kv_heads", {"tensor"}},
      {"embed", {"fsdp"}},
      {"norm", {"tensor"}},
      {"lora_rank", {}},
      {"layers", {}},
  };
  return kRules;
}

AxisRules combine(AxisRules local, const AxisRules& context) {
  local.insert(local.end(), context.begin(), context.end());
  return local;
}

}  // namespace graft
