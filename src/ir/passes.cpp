#include "ir/passes.h"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "ir/primitives.h"
#include "ir/scan.h"

namespace graft {
namespace {

using ValueMap = std::unordered_map<ValueId, Value>;

std::vector<Value> images(const std::vector<ValueId>& ids, const ValueMap& known) {
  std::vector<Value> values;
  values.reserve(ids.size());
  for (ValueId id : ids) values.push_back(known.at(id));
  return values;
}

void copy_node(const Node& node, Graph& to, ValueMap& known) {
  const std::vector<Value> results = to.add_like(node, images(node.operands, known));
  for (size_t i = 0; i < results.size(); ++i) known.emplace(node.results[i], results[i]);
}

void copy_inputs(const Graph& from, Graph& to, ValueMap& known) {
  for (const Input& input : from.inputs()) {
    known.emplace(input.value, to.input(input.name, from.type(input.value), input.kind));
  }
}

void copy_outputs(const Graph& from, Graph& to, const ValueMap& known) {
  for (const Output& output : from.outputs()) {
    const Value image = known.at(output.value);
    if (output.donated_input < 0) {
      to.output(output.name, image);
    } else {
      const ValueId replaced = from.inputs()[static_cast<size_t>(output.donated_input)].value;
      to.output(output.name, image, known.at(replaced));
    }
  }
}

// Copies a graph node by node through `rewrite`, which adds the images of a node's results to the
// map.
std::unique_ptr<Graph> rewrite_nodes(
    const Graph& graph, const std::function<void(const Node&, Graph&, ValueMap&)>& rewrite) {
  auto result = std::make_unique<Graph>();
  ValueMap known;
  copy_inputs(graph, *result, known);
  for (const Node& node : graph.nodes()) rewrite(node, *result, known);
  copy_outputs(graph, *result, known);
  return result;
}

}  // namespace

std::vector<Value> copy_values(const Graph& from, std::span<const ValueId> wanted, Graph& to,
                               ValueMap& known) {
  std::set<int> needed;  // nodes, in graph order
  std::vector<ValueId> pending(wanted.begin(), wanted.end());
  while (!pending.empty()) {
    const ValueId id = pending.back();
    pending.pop_back();
    if (known.contains(id)) continue;
    const int node = from.defining_node(id);
    GRAFT_CHECK(node >= 0, "copy_values needs input %{}, which is not known", id);
    if (!needed.insert(node).second) continue;
    const auto& operands = from.nodes()[static_cast<size_t>(node)].operands;
    pending.insert(pending.end(), operands.begin(), operands.end());
  }
  for (int node : needed) copy_node(from.nodes()[static_cast<size_t>(node)], to, known);
  return images({wanted.begin(), wanted.end()}, known);
}

std::unique_ptr<Graph> copy(const Graph& graph) { return rewrite_nodes(graph, copy_node); }

std::unique_ptr<Graph> decompose(const Graph& graph) {
  bool composite_left = false;
  auto result = rewrite_nodes(graph, [](const Node& node, Graph& to, ValueMap& known) {
    const std::vector<Value> operands = images(node.operands, known);
    std::vector<Value> results;
    if (node.op->primitive) {
      Node primitive = node;
      for (auto& body : primitive.bodies) body = decompose(*body);
      results = to.add_like(primitive, operands);
    } else {
      GRAFT_CHECK(node.op->decompose != nullptr, "{} has no decomposition", node.op->name);
      std::vector<Type> types;
      for (Value v : operands) types.push_back(v.type());
      const Graph::Scope scope = to.scope(node.scope);
      results = node.op->decompose(to, operands, {types, node.attributes, node.bodies});
    }
    GRAFT_CHECK(results.size() == node.results.size(), "{} decomposes to {} results, not {}",
                node.op->name, results.size(), node.results.size());
    for (size_t i = 0; i < results.size(); ++i) known.emplace(node.results[i], results[i]);
  });
  // A decomposition may itself use composites, or scans over them.
  for (const Op* op : operations(*result)) composite_left |= !op->primitive;
  return composite_left ? decompose(*result) : std::move(result);
}

namespace {

size_t node_hash(const Op* op, const std::vector<Value>& operands, const Attributes& attributes) {
  size_t hash = std::hash<const void*>()(op);
  const auto mix = [&hash](size_t more) { hash = hash * 1099511628211U ^ more; };
  for (Value v : operands) mix(static_cast<size_t>(v.id()) + 1);
  for (const auto& [name, value] : attributes) {
    mix(std::hash<std::string>()(name));
    mix(std::hash<std::string>()(value.to_string()));
  }
  return hash;
}

// Whether `whole` has every attribute of `part`.
bool includes(const Attributes& whole, const Attributes& part) {
  return std::all_of(part.begin(), part.end(), [&](const auto& item) {
    return std::any_of(whole.begin(), whole.end(),
                       [&](const auto& other) { return item == other; });
  });
}

// The node of op->subsumed_by on the same operands, if the graph has one.
const Node* subsuming_node(const Graph& graph, const Node& node) {
  if (node.op->subsumed_by == nullptr) return nullptr;
  for (const Node& other : graph.nodes()) {
    if (other.op == node.op->subsumed_by && other.operands == node.operands &&
        includes(other.attributes, node.attributes)) {
      return &other;
    }
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<Graph> merge_common_subexpressions(const Graph& graph) {
  struct Seen {
    const Node* node;
    std::vector<Value> results;
  };
  std::unordered_multimap<size_t, Seen> seen;
  return rewrite_nodes(graph, [&](const Node& original, Graph& to, ValueMap& known) {
    const Node* node = subsuming_node(graph, original);
    if (node == nullptr) node = &original;
    const std::vector<Value> operands = images(node->operands, known);
    const size_t hash = node_hash(node->op, operands, node->attributes);
    std::vector<Value> results;
    const auto [first, last] = seen.equal_range(hash);
    for (auto it = first; it != last && results.empty(); ++it) {
      const Node& other = *it->second.node;
      if (other.op == node->op && other.attributes == node->attributes &&
          other.bodies == node->bodies && images(other.operands, known) == operands) {
        results = it->second.results;
      }
    }
    if (results.empty()) {
      Node merged = *node;
      for (auto& body : merged.bodies) body = merge_common_subexpressions(*body);
      results = to.add_like(merged, operands);
      seen.emplace(hash, Seen{node, results});
    }
    for (size_t i = 0; i < original.results.size(); ++i) {
      known.emplace(original.results[i], results[i]);
    }
  });
}

namespace {

// The images of a scan's stacked results, kept apart as long as only unrolled scans read them.
class Unroller {
 public:
  explicit Unroller(const std::function<bool(const Node&)>& keep) : keep_(keep) {}

  void rewrite(const Node& node, Graph& to, ValueMap& known) {
    if (node.op == &kScan && !(keep_ && keep_(node))) {
      unroll(node, to, known);
      return;
    }
    for (ValueId id : node.operands) stack(id, known);
    Node copied = node;
    for (auto& body : copied.bodies) body = unroll_scans(*body, keep_);
    const std::vector<Value> results = to.add_like(copied, images(node.operands, known));
    for (size_t i = 0; i < results.size(); ++i) known.emplace(node.results[i], results[i]);
  }

  // Joins the slices of a stacked result into the one value that others need.
  void stack(ValueId id, ValueMap& known) {
    const auto it = slices_.find(id);
    if (it == slices_.end() || known.contains(id)) return;
    std::vector<Value> rows;
    for (Value v : it->second) {
      Shape shape = v.shape();
      shape.insert(shape.begin(), 1);
      rows.push_back(reshape(v, shape));
    }
    known.emplace(id, concatenate(rows, 0));
  }

 private:
  Value slice_of(ValueId id, int64_t i, ValueMap& known) {
    const auto it = slices_.find(id);
    if (it != slices_.end()) return it->second[static_cast<size_t>(i)];
    const Value row = slice(known.at(id), 0, i, i + 1);
    return reshape(row, Shape(row.shape().begin() + 1, row.shape().end()));
  }

  void unroll(const Node& node, Graph& to, ValueMap& known) {
    const ScanLayout layout = ScanLayout::of(node);
    const std::unique_ptr<Graph> body = unroll_scans(*node.bodies[0], keep_);
    std::vector<Value> carries;
    for (int i = 0; i < layout.carries; ++i) {
      stack(node.operands[static_cast<size_t>(i)], known);
      carries.push_back(known.at(node.operands[static_cast<size_t>(i)]));
    }
    const auto operand = [&](int i) { return node.operands[static_cast<size_t>(i)]; };
    const auto result = [&](int i) { return node.results[static_cast<size_t>(i)]; };
    for (int i = 0; i < layout.stacked_out; ++i) {
      slices_[result(layout.carries + i)].resize(static_cast<size_t>(layout.length));
    }
    for (int64_t step = 0; step < layout.length; ++step) {
      const int64_t i = layout.reverse ? layout.length - 1 - step : step;
      ValueMap inner;
      size_t next = 0;
      const auto enter = [&](Value v) { inner.emplace(body->inputs()[next++].value, v); };
      for (Value carry : carries) enter(carry);
      int from = layout.carries;
      for (int k = 0; k < layout.invariants; ++k, ++from) {
        stack(operand(from), known);
        enter(known.at(operand(from)));
      }
      for (int k = 0; k < layout.stacked_in; ++k, ++from) enter(slice_of(operand(from), i, known));
      for (int k = 0; k < layout.lists_in; ++k) {
        stack(operand(layout.list_operand(k, i)), known);
        enter(known.at(operand(layout.list_operand(k, i))));
      }
      for (const Node& inside : body->nodes()) copy_node(inside, to, inner);
      size_t out = 0;
      const auto leave = [&] { return inner.at(body->outputs()[out++].value); };
      for (Value& carry : carries) carry = leave();
      for (int k = 0; k < layout.stacked_out; ++k) {
        slices_[result(layout.carries + k)][static_cast<size_t>(i)] = leave();
      }
      for (int k = 0; k < layout.lists_out; ++k) {
        known.emplace(result(layout.list_result(k, i)), leave());
      }
    }
    for (int i = 0; i < layout.carries; ++i) {
      known.emplace(result(i), carries[static_cast<size_t>(i)]);
    }
  }

  const std::function<bool(const Node&)>& keep_;
  std::unordered_map<ValueId, std::vector<Value>> slices_;
};

void collect_operations(const Graph& graph, std::set<const Op*>& ops) {
  for (const Node& node : graph.nodes()) {
    ops.insert(node.op);
    for (const auto& body : node.bodies) collect_operations(*body, ops);
  }
}

}  // namespace

std::unique_ptr<Graph> unroll_scans(const Graph& graph,
                                    const std::function<bool(const Node&)>& keep) {
  auto result = std::make_unique<Graph>();
  ValueMap known;
  copy_inputs(graph, *result, known);
  Unroller unroller(keep);
  for (const Node& node : graph.nodes()) unroller.rewrite(node, *result, known);
  for (const Output& output : graph.outputs()) unroller.stack(output.value, known);
  copy_outputs(graph, *result, known);
  return result;
}

std::vector<const Op*> operations(const Graph& graph) {
  std::set<const Op*> ops;
  collect_operations(graph, ops);
  std::vector<const Op*> sorted(ops.begin(), ops.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const Op* a, const Op* b) { return a->name < b->name; });
  return sorted;
}

}  // namespace graft
