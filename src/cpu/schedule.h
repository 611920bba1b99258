#pragma once
// The order of operations: nodes that free at least what they take are moved ahead to where they
// first can run.
//
// Autodiff leaves the gradients of a layer's weights behind the chain of its input gradients, each
// holding an activation's gradient alive until then. A weight's gradient goes straight to its slot
// of a list result, so computing it at once costs nothing, frees its operands, and finds them in
// the cache. Nothing else is moved: a node that takes more than it frees stays where it was.

#include <memory>

#include "ir/graph.h"

namespace graft::cpu {

// Of a lowered graph, bodies included. Results keep every bit.
std::unique_ptr<Graph> schedule(const Graph& graph);

}  // namespace graft::cpu
