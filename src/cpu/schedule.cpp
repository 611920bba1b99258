#include "cpu/schedule.h"

#include <algorithm>
#include <map>
#include <set>

#include "cpu/lower.h"
#include "ir/primitives.h"
#include "ir/scan.h"

namespace graft::cpu {
namespace {

class Scheduler {
 public:
  // `layout` of the scan whose body the graph is, if it is one.
  Scheduler(const Graph& graph, const ScanLayout* layout) : graph_(graph) {
    const auto values = static_cast<size_t>(graph.value_count());
    root_.resize(values);
    users_.resize(values);
    readers_.resize(values);
    uses_left_.resize(values);
    is_output_.resize(values);
    in_slot_.resize(values);
    replaces_.assign(values, -1);
    for (size_t v = 0; v < values; ++v) root_[v] = static_cast<ValueId>(v);
    for (const Node& node : graph.nodes()) {
      if (is_view(graph, node)) at(root_, node.results[0]) = root(node.operands[0]);
    }
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      const Node& node = graph.nodes()[n];
      for (ValueId operand : node.operands) {
        at(users_, operand).push_back(static_cast<int>(n));
        ++at(uses_left_, root(operand));
        if (!is_view(graph, node)) at(readers_, root(operand)).push_back(static_cast<int>(n));
      }
    }
    classify_outputs(layout);
  }

  std::vector<int> order() {
    const auto& nodes = graph_.nodes();
    missing_.resize(nodes.size());
    done_.resize(nodes.size());
    for (size_t n = 0; n < nodes.size(); ++n) {
      for (ValueId operand : nodes[n].operands) missing_[n] += graph_.defining_node(operand) >= 0;
      if (missing_[n] == 0) ready_.insert(static_cast<int>(n));
    }
    for (size_t n = 0; n < nodes.size(); ++n) {
      advance();
      if (!done_[n]) run(static_cast<int>(n));
    }
    return order_;
  }

 private:
  template <typename T>
  static T& at(std::vector<T>& list, ValueId id) {
    return list[static_cast<size_t>(id)];
  }
  ValueId root(ValueId id) const { return root_[static_cast<size_t>(id)]; }
  bool is_input(ValueId id) const { return graph_.defining_node(id) < 0; }
  int64_t bytes(ValueId id) const { return static_cast<int64_t>(graph_.type(id).bytes()); }

  // Which values have storage of their own outside, and which may be written over an input's.
  void classify_outputs(const ScanLayout* layout) {
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      const Output& output = graph_.outputs()[i];
      const auto value = static_cast<size_t>(root(output.value));
      is_output_[value] = true;
      if (layout == nullptr) {
        if (output.donated_input >= 0) replaces_[value] = input(output.donated_input);
      } else if (static_cast<int>(i) < layout->carries) {
        replaces_[value] = input(static_cast<int>(i));
      } else {
        in_slot_[value] = true;
      }
    }
    if (layout == nullptr) return;
    for (int i = 0; i < layout->body_inputs(); ++i) {
      if (i < layout->carries) carries_.insert(input(i));
      if (i >= layout->carries + layout->invariants) elements_.insert(input(i));
    }
  }
  ValueId input(int i) const { return graph_.inputs()[static_cast<size_t>(i)].value; }

  // Bytes of the arena that a result takes.
  int64_t cost(ValueId value) const {
    const auto i = static_cast<size_t>(value);
    if (in_slot_[i]) return 0;
    if (replaces_[i] >= 0)
      return uses_left_[static_cast<size_t>(replaces_[i])] > 0 ? bytes(value) : 0;
    // What one elementwise operation alone reads is that one's result, in place.
    if (!is_output_[i] && readers_[i].size() == 1) {
      const Node& reader = graph_.nodes()[static_cast<size_t>(readers_[i][0])];
      const ValueId result = reader.results[0];
      if (is_elementwise(reader.op) && bytes(result) == bytes(value)) return cost(result);
    }
    return bytes(value);
  }

  // Bytes of the arena that a value gives back once nobody reads it.
  int64_t worth(ValueId value) const {
    if (is_output_[static_cast<size_t>(value)]) return 0;
    return is_input(value) ? 0 : bytes(value);
  }

  // Whether running a node now takes no more than it frees.
  bool is_free(int index) const {
    const Node& node = graph_.nodes()[static_cast<size_t>(index)];
    std::map<ValueId, int> reads;
    for (ValueId operand : node.operands) ++reads[root(operand)];
    int64_t balance = 0;
    for (ValueId result : node.results) {
      if (root(result) == result) balance += cost(result);
    }
    for (const auto& [value, count] : reads) {
      const bool last = uses_left_[static_cast<size_t>(value)] == count;
      if (last) balance -= worth(value);
      // It may be about to be updated in place, which it cannot be while others read the old value.
      if (!last && (elements_.contains(value) || carries_.contains(value))) {
        for (ValueId result : node.results) {
          if (bytes(result) == bytes(value)) return false;
        }
      }
    }
    return balance <= 0;
  }

  void run(int index) {
    const Node& node = graph_.nodes()[static_cast<size_t>(index)];
    done_[static_cast<size_t>(index)] = true;
    ready_.erase(index);
    order_.push_back(index);
    for (ValueId operand : node.operands) --at(uses_left_, root(operand));
    for (ValueId result : node.results) {
      for (int user : users_[static_cast<size_t>(result)]) {
        if (--missing_[static_cast<size_t>(user)] == 0) ready_.insert(user);
      }
    }
  }

  void advance() {
    for (auto it = ready_.begin(); it != ready_.end();) {
      if (is_free(*it)) {
        run(*it);
        it = ready_.begin();
      } else {
        ++it;
      }
    }
  }

  const Graph& graph_;
  std::vector<ValueId> root_;              // of a view: the value whose bytes it shows
  std::vector<std::vector<int>> users_;    // an entry a use
  std::vector<std::vector<int>> readers_;  // of roots: the nodes that read it, or a view of it
  std::vector<int> uses_left_;             // of roots
  std::vector<bool> is_output_, in_slot_;  // of roots
  std::vector<ValueId> replaces_;          // the input that an output may be written over
  std::set<ValueId> carries_, elements_;
  std::vector<int> missing_;  // operands not made yet
  std::vector<bool> done_;
  std::set<int> ready_;
  std::vector<int> order_;
};

std::unique_ptr<Graph> reordered(const Graph& graph, const ScanLayout* layout) {
  auto result = std::make_unique<Graph>();
  std::vector<Value> known(static_cast<size_t>(graph.value_count()));
  const auto image = [&](ValueId id) -> Value& { return known[static_cast<size_t>(id)]; };
  for (const Input& input : graph.inputs()) {
    image(input.value) = result->input(input.name, graph.type(input.value), input.kind);
  }
  for (int index : Scheduler(graph, layout).order()) {
    Node node = graph.nodes()[static_cast<size_t>(index)];
    for (auto& body : node.bodies) {
      const ScanLayout inner = node.op == &kScan ? ScanLayout::of(node) : ScanLayout();
      body = reordered(*body, node.op == &kScan ? &inner : nullptr);
    }
    std::vector<Value> operands;
    for (ValueId id : node.operands) operands.push_back(image(id));
    const std::vector<Value> results = result->add_like(node, operands);
    for (size_t i = 0; i < results.size(); ++i) image(node.results[i]) = results[i];
  }
  for (const Output& output : graph.outputs()) {
    if (output.donated_input < 0) {
      result->output(output.name, image(output.value));
    } else {
      const auto replaced = static_cast<size_t>(output.donated_input);
      result->output(output.name, image(output.value), image(graph.inputs()[replaced].value));
    }
  }
  return result;
}

}  // namespace

std::unique_ptr<Graph> schedule(const Graph& graph) { return reordered(graph, nullptr); }

}  // namespace graft::cpu
