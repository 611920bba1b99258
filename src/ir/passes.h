#pragma once
// Graph-to-graph passes. Each returns a new graph with the same inputs and outputs, in the same
// order.

#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace graft {

// Copies into `to` whatever `wanted` (values of `from`) depends on, stopping at the values that
// `known` maps already; extends `known` with what it copied, and returns the images of `wanted`. An
// input that is needed but not known is a fault.
std::vector<Value> copy_values(const Graph& from, std::span<const ValueId> wanted, Graph& to,
                               std::unordered_map<ValueId, Value>& known);

std::unique_ptr<Graph> copy(const Graph& graph);

// Drops nodes that no output depends on, inside scan bodies too (with their unused results and
// operands).
std::unique_ptr<Graph> eliminate_dead_code(const Graph& graph);

// Merges equal operations on equal operands, and operations that another one subsumes
// (Op::subsumed_by). Bodies are treated by themselves: what a backward body computes again is never
// merged with the forward.
std::unique_ptr<Graph> merge_common_subexpressions(const Graph& graph);

// Replaces every composite by its decomposition, recursively: primitives and scans remain.
std::unique_ptr<Graph> decompose(const Graph& graph);

// Replaces every scan by its iterations one after another; `keep` decides which scans stay. Runs
// last: merging afterwards would undo rematerialisation.
std::unique_ptr<Graph> unroll_scans(const Graph& graph,
                                    const std::function<bool(const Node&)>& keep = nullptr);

// Every operation that occurs, bodies included, sorted by name.
std::vector<const Op*> operations(const Graph& graph);

}  // namespace graft
