#pragma once
// Prepares a graph for StableHLO: composites become primitives, and lists become stacks.
//
// A scan over layers takes lists: one variable a layer, by name. XLA wants one array [L, ...] for
// them, and a program whose size does not depend on L. So every list is stacked, and so is what is
// done alike to each of its members outside the scan (the optimiser's update of each layer's
// adapter, say), which becomes one loop over the stack. An input of the lowered graph therefore
// stands for one variable or for the stack of several; the executor concatenates them when they are
// put on the devices, and nobody else sees it.
//
//   Lowered lowered = lower(graph);
//   lowered.inputs[0].names;   // {"model.layers.0....lora_A", "model.layers.1....lora_A", ...}
//
// A stack is made where all members are inputs, results of one scan, or results of equal nodes;
// what does not fit is concatenated where it is needed.

#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace graft::pjrt {

// What an input or an output of the lowered graph stands for.
struct Bundle {
  std::vector<std::string> names;  // of the original graph
  bool stacked = false;            // [names.size(), ...]; else one name
};

struct Lowered {
  std::unique_ptr<Graph> graph;
  std::vector<Bundle> inputs, outputs;
};

Lowered lower(const Graph& graph);

// The first half alone: a graph without lists, composites kept.
Lowered stack_lists(const Graph& graph);

}  // namespace graft::pjrt
