#pragma once
// Logical axis rules: which mesh axes a dimension of a given meaning may be split over.
//
// A rule is a logical axis and a list of mesh axes, as in MaxText's logical_axis_rules; the first
// rule of a name whose mesh axes are all still free in a spec is taken. Rules of one's own come
// before the default ones, so that they decide; an empty list of mesh axes says "never".
//
//   const AxisRules rules = combine({{"embed", {}}}, default_axis_rules());

#include <string>
#include <vector>

#include "ir/variable.h"

namespace graft {

struct AxisRule {
  std::string logical;                 // "embed"
  std::vector<std::string> mesh_axes;  // {"fsdp"}; the product of their sizes divides the dimension
  friend bool operator==(const AxisRule&, const AxisRule&) = default;
};
using AxisRules = std::vector<AxisRule>;

// Parameters: embed over fsdp; mlp, heads, kv_heads, vocab and norm over tensor; lora_rank never.
// Activations: activation_batch over data and fsdp; activation_embed, activation_heads,
// activation_kv_heads, activation_mlp and activation_vocab over tensor; activation_length over
// context.
const AxisRules& default_axis_rules();

// Local rules stand before those of the context.
AxisRules combine(AxisRules local, const AxisRules& context);

}  // namespace graft
