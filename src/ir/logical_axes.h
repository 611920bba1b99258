#pragma once
// What the dimensions of an activation mean, said in the graph: an executor of a mesh of devices
// places the value as its axis rules say (sharding/rules.h); every other one passes it through.
//
//   x = with_logical_axes(x, {"activation_batch", "activation_length", "activation_embed"});

#include <string>
#include <vector>

#include "ir/graph.h"

namespace graft {

// operand: x; attribute axes: one name a dimension, separated by commas, "" where it is never
// split. The result is x; its gradient is the same for the cotangent.
extern const Op kLogicalAxes;

Value with_logical_axes(Value x, const std::vector<std::string>& axes);
std::vector<std::string> logical_axes_of(const Node& node);

}  // namespace graft
