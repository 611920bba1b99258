#pragma once
// Which values of a graph are stacked: the analysis behind pjrt/lower.h.

#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "ir/scan.h"

namespace graft::pjrt {

// Values of one type that are held as one array [members, ...].
struct Stack {
  std::vector<ValueId> members;
};

// Equal nodes, one a member, that run as one loop.
struct NodeGroup {
  std::vector<int> nodes;
  // For each operand: the stack of what the nodes take, or -1 where all take the same value.
  std::vector<int> columns;
};

struct Stacks {
  const Graph* graph = nullptr;
  std::vector<Stack> stacks;
  std::unordered_map<ValueId, std::pair<int, int>> place;  // stack and index of a member
  std::vector<NodeGroup> groups;
  std::unordered_map<int, int> group_of_node;
  std::unordered_map<int, std::unique_ptr<Stacks>> bodies;  // of scan nodes

  // The stack whose members are exactly these, in order, or -1.
  int find(std::span<const ValueId> members) const;
};

// `kinds`: for each input, which others it may be stacked with (equal numbers), or -1.
std::unique_ptr<Stacks> find_stacks(const Graph& graph, const std::vector<int>& kinds);

// For a scan's body: carries among themselves, invariants among themselves.
std::vector<int> body_input_kinds(const ScanLayout& layout);

}  // namespace graft::pjrt
