#pragma once
// Which linear layers carry an adapter, by PEFT's matching rules (LoraConfig of PEFT 0.21).
//
//   const AdapterPlan plan = plan_adapters(config, all_linears(model));
//   plan.sites.at("model.layers.0.self_attn.q_proj").rank;

#include <map>
#include <string>
#include <vector>

#include "formats/peft.h"
#include "ir/variable.h"
#include "models/layout.h"
#include "models/model.h"

namespace graft {

struct AdapterPlan {
  LoraSites sites;
  // Sites by target: the suffix that matched, or the leaf name for an expression ("q_proj": 30).
  std::map<std::string, int64_t> modules_per_target;
  std::vector<std::string> unmatched_targets;  // suffixes that matched nothing
  // Entries of the other keys that touched no module: "lora.rank_pattern: q_prj".
  std::vector<std::string> unmatched_patterns;
  std::vector<VariableSpec> variables;  // lora_A, lora_B of each site, in module order
};

// Rules:
// - a list matches a module whose name is the entry or ends in "." + entry; one expression must
// match the
//   whole name; "all-linear" matches every linear layer but the head;
// - exclude_modules, of the same forms, takes modules out again;
// - layers_to_transform keeps only those layer numbers;
// - the first entry of rank_pattern / alpha_pattern that matches (.*\.)?(pattern)$ overrides r /
// lora_alpha;
// - the scale is alpha / r, or alpha / sqrt(r) with use_rslora.
// Raises Error for an invalid expression or number; that nothing matched is for the caller to
// judge.
AdapterPlan plan_adapters(const AdapterConfig& config, const std::vector<LinearModule>& modules);

// Full names of the modules that a selection matches (by the rules above), in their order. Raises
// Error naming `key` for an entry that matches none.
std::vector<std::string> select_modules(const ModuleSelection& selection,
                                        const std::vector<LinearModule>& modules,
                                        const std::string& key);

}  // namespace graft
