#include "pjrt/stacks.h"

#include <algorithm>
#include <set>

namespace graft::pjrt {
namespace {

class Finder {
 public:
  Finder(const Graph& graph, const std::vector<int>& kinds)
      : graph_(graph), kinds_(kinds), result_(std::make_unique<Stacks>()) {
    result_->graph = &graph;
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      for (ValueId id : graph.nodes()[n].operands) {
        auto& list = consumers_[id];
        if (list.empty() || list.back() != static_cast<int>(n)) list.push_back(static_cast<int>(n));
      }
    }
  }

  std::unique_ptr<Stacks> run() {
    std::vector<std::vector<ValueId>> wanted;
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      if (graph_.nodes()[n].op == &kScan) visit_scan(static_cast<int>(n), wanted);
    }
    // The longest first: a part of a stack is a slice of it.
    std::stable_sort(wanted.begin(), wanted.end(),
                     [](const auto& a, const auto& b) { return a.size() > b.size(); });
    for (const auto& members : wanted) want(members);
    for (size_t s = 0; s < result_->stacks.size(); ++s) spread(static_cast<int>(s));
    return std::move(result_);
  }

 private:
  // Results of a scan are stacks; its operands would like to be.
  void visit_scan(int index, std::vector<std::vector<ValueId>>& wanted) {
    const Node& node = graph_.nodes()[static_cast<size_t>(index)];
    const ScanLayout layout = ScanLayout::of(node);
    const auto operand = [&](int i) { return node.operands[static_cast<size_t>(i)]; };
    for (int list = 0; list < layout.lists_in; ++list) {
      auto& members = wanted.emplace_back();
      for (int64_t i = 0; i < layout.length; ++i) {
        members.push_back(operand(layout.list_operand(list, i)));
      }
    }
    for (int list = 0; list < layout.lists_out; ++list) {
      std::vector<ValueId> members;
      for (int64_t i = 0; i < layout.length; ++i) {
        members.push_back(node.results[static_cast<size_t>(layout.list_result(list, i))]);
      }
      add(std::move(members));
    }
    auto body = find_stacks(*node.bodies[0], body_input_kinds(layout));
    for (const Stack& stack : body->stacks) {
      std::vector<ValueId> operands, results;
      for (ValueId member : stack.members) {
        const int input = node.bodies[0]->input_index(member);
        if (input < 0) break;
        operands.push_back(operand(input));
        if (input < layout.carries) results.push_back(node.results[static_cast<size_t>(input)]);
      }
      if (operands.size() != stack.members.size()) continue;
      wanted.push_back(std::move(operands));
      if (results.size() == stack.members.size()) add(std::move(results));
    }
    result_->bodies.emplace(index, std::move(body));
  }

  bool distinct_and_free(std::span<const ValueId> members) const {
    const std::set<ValueId> set(members.begin(), members.end());
    return members.size() > 1 && set.size() == members.size() &&
           std::none_of(members.begin(), members.end(),
                        [&](ValueId id) { return result_->place.contains(id); });
  }

  bool are_alike_inputs(std::span<const ValueId> members) const {
    const auto kind = [&](ValueId id) {
      const int input = graph_.input_index(id);
      return input < 0 ? -1 : kinds_[static_cast<size_t>(input)];
    };
    return kind(members[0]) >= 0 && std::all_of(members.begin(), members.end(), [&](ValueId id) {
             return kind(id) == kind(members[0]) && graph_.type(id) == graph_.type(members[0]);
           });
  }

  int add(std::vector<ValueId> members) {
    if (!distinct_and_free(members)) return -1;
    const auto index = static_cast<int>(result_->stacks.size());
    for (size_t i = 0; i < members.size(); ++i) {
      result_->place[members[i]] = {index, static_cast<int>(i)};
    }
    result_->stacks.push_back({std::move(members)});
    return index;
  }

  // A list that a scan takes: a stack of inputs, or of what equal nodes make.
  int want(const std::vector<ValueId>& members) {
    if (const int found = result_->find(members); found >= 0) return found;
    if (!distinct_and_free(members)) return -1;
    if (are_alike_inputs(members)) return add(members);
    std::vector<int> nodes;
    for (ValueId id : members) nodes.push_back(graph_.defining_node(id));
    if (std::find(nodes.begin(), nodes.end(), -1) != nodes.end()) return -1;
    if (std::set<int>(nodes.begin(), nodes.end()).size() != nodes.size()) return -1;
    group(nodes);
    return result_->find(members);
  }

  bool are_equal(const Node& a, const Node& b) const {
    if (a.op != b.op || !a.bodies.empty() || !b.bodies.empty()) return false;
    if (a.operands.size() != b.operands.size() || !(a.attributes == b.attributes)) return false;
    for (size_t i = 0; i < a.operands.size(); ++i) {
      if (!(graph_.type(a.operands[i]) == graph_.type(b.operands[i]))) return false;
    }
    return true;
  }

  // Makes one loop of nodes that are equal and take aligned stacks or the same value.
  bool group(const std::vector<int>& nodes) {
    const auto& all = graph_.nodes();
    const Node& first = all[static_cast<size_t>(nodes[0])];
    const int earliest = *std::min_element(nodes.begin(), nodes.end());
    for (int n : nodes) {
      if (result_->group_of_node.contains(n)) return false;
      if (!are_equal(first, all[static_cast<size_t>(n)])) return false;
    }
    NodeGroup made{nodes, {}};
    std::vector<std::vector<ValueId>> inputs_to_stack;
    for (size_t k = 0; k < first.operands.size(); ++k) {
      std::vector<ValueId> column;
      for (int n : nodes) column.push_back(all[static_cast<size_t>(n)].operands[k]);
      // All that the loop takes must be there before its first node: so it cannot need itself.
      if (std::any_of(column.begin(), column.end(),
                      [&](ValueId id) { return graph_.defining_node(id) >= earliest; })) {
        return false;
      }
      if (std::all_of(column.begin(), column.end(), [&](ValueId id) { return id == column[0]; })) {
        made.columns.push_back(-1);
      } else if (const int stack = result_->find(column); stack >= 0) {
        made.columns.push_back(stack);
      } else if (distinct_and_free(column) && are_alike_inputs(column)) {
        made.columns.push_back(-2 - static_cast<int>(inputs_to_stack.size()));
        inputs_to_stack.push_back(std::move(column));
      } else {
        return false;
      }
    }
    if (std::all_of(made.columns.begin(), made.columns.end(), [](int c) { return c == -1; })) {
      return false;
    }
    for (int& column : made.columns) {
      if (column > -2) continue;
      column = want(inputs_to_stack[static_cast<size_t>(-2 - column)]);
      if (column < 0) return false;  // two operands wanted the same inputs in different orders
    }
    for (int n : nodes) result_->group_of_node[n] = static_cast<int>(result_->groups.size());
    for (size_t r = 0; r < first.results.size(); ++r) {
      std::vector<ValueId> results;
      for (int n : nodes) results.push_back(all[static_cast<size_t>(n)].results[r]);
      add(std::move(results));
    }
    result_->groups.push_back(std::move(made));
    return true;
  }

  // Looks for loops among the consumers of a stack's members.
  void spread(int s) {
    const std::vector<ValueId> members = result_->stacks[static_cast<size_t>(s)].members;
    const auto candidates = consumers_.find(members[0]);
    if (candidates == consumers_.end()) return;
    for (int first : candidates->second) {
      std::vector<int> nodes{first};
      const Node& model = graph_.nodes()[static_cast<size_t>(first)];
      if (!model.bodies.empty() || result_->group_of_node.contains(first)) continue;
      const auto slot = std::find(model.operands.begin(), model.operands.end(), members[0]) -
                        model.operands.begin();
      for (size_t i = 1; i < members.size(); ++i) {
        const int match = matching_consumer(members[i], model, static_cast<size_t>(slot), nodes);
        if (match < 0) break;
        nodes.push_back(match);
      }
      if (nodes.size() == members.size()) group(nodes);
    }
  }

  int matching_consumer(ValueId id, const Node& model, size_t slot,
                        const std::vector<int>& taken) const {
    const auto candidates = consumers_.find(id);
    if (candidates == consumers_.end()) return -1;
    for (int n : candidates->second) {
      const Node& node = graph_.nodes()[static_cast<size_t>(n)];
      if (result_->group_of_node.contains(n) || !are_equal(model, node)) continue;
      if (node.operands[slot] != id) continue;
      if (std::find(taken.begin(), taken.end(), n) == taken.end()) return n;
    }
    return -1;
  }

  const Graph& graph_;
  const std::vector<int>& kinds_;
  std::unique_ptr<Stacks> result_;
  std::unordered_map<ValueId, std::vector<int>> consumers_;
};

}  // namespace

int Stacks::find(std::span<const ValueId> members) const {
  const auto at = members.empty() ? place.end() : place.find(members[0]);
  if (at == place.end()) return -1;
  const Stack& stack = stacks[static_cast<size_t>(at->second.first)];
  return std::equal(members.begin(), members.end(), stack.members.begin(), stack.members.end())
             ? at->second.first
             : -1;
}

std::unique_ptr<Stacks> find_stacks(const Graph& graph, const std::vector<int>& kinds) {
  return Finder(graph, kinds).run();
}

std::vector<int> body_input_kinds(const ScanLayout& layout) {
  std::vector<int> kinds(static_cast<size_t>(layout.body_inputs()), -1);
  for (int i = 0; i < layout.carries; ++i) kinds[static_cast<size_t>(i)] = 1;
  for (int i = 0; i < layout.invariants; ++i) kinds[static_cast<size_t>(layout.carries + i)] = 0;
  return kinds;
}

}  // namespace graft::pjrt
