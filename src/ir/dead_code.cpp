// Dead-code elimination, through the interfaces of scans: a result nobody reads goes, with the
// carries, operands and body nodes that fed it alone.

#include <unordered_set>

#include "ir/passes.h"
#include "ir/scan.h"

namespace graft {
namespace {

// What is left of a node: its attributes and bodies, and which of its operands and results stay.
struct Pruned {
  Attributes attributes;
  std::vector<std::shared_ptr<const Graph>> bodies;
  std::vector<size_t> operands, results;
};

std::vector<size_t> all_of(size_t n) {
  std::vector<size_t> indices(n);
  for (size_t i = 0; i < n; ++i) indices[i] = i;
  return indices;
}

// The body with the chosen inputs and outputs alone.
std::unique_ptr<Graph> restrict(const Graph& body, const std::vector<bool>& keep_input,
                                const std::vector<bool>& keep_output) {
  auto result = std::make_unique<Graph>();
  std::unordered_map<ValueId, Value> known;
  for (size_t i = 0; i < body.inputs().size(); ++i) {
    const Input& input = body.inputs()[i];
    if (keep_input[i]) {
      known.emplace(input.value, result->input(input.name, body.type(input.value), input.kind));
    }
  }
  for (size_t i = 0; i < body.outputs().size(); ++i) {
    if (!keep_output[i]) continue;
    const ValueId wanted[] = {body.outputs()[i].value};
    result->output(body.outputs()[i].name, copy_values(body, wanted, *result, known)[0]);
  }
  return result;
}

std::vector<bool> inputs_read(const Graph& graph) {
  std::vector<bool> read(graph.inputs().size(), false);
  const auto mark = [&](ValueId id) {
    const int input = graph.input_index(id);
    if (input >= 0) read[static_cast<size_t>(input)] = true;
  };
  for (const Node& node : graph.nodes()) {
    for (ValueId id : node.operands) mark(id);
  }
  for (const Output& output : graph.outputs()) mark(output.value);
  return read;
}

Pruned prune_scan(const Node& node, const std::vector<bool>& live) {
  const ScanLayout layout = ScanLayout::of(node);
  const Graph& body = *node.bodies[0];
  const auto index = [](int i) { return static_cast<size_t>(i); };

  // Which outputs of the body are wanted by somebody outside.
  std::vector<bool> keep(index(layout.body_outputs()), false);
  for (int i = 0; i < layout.carries + layout.stacked_out; ++i) keep[index(i)] = live[index(i)];
  for (int list = 0; list < layout.lists_out; ++list) {
    for (int64_t i = 0; i < layout.length; ++i) {
      if (live[index(layout.list_result(list, i))]) {
        keep[index(layout.carries + layout.stacked_out + list)] = true;
      }
    }
  }
  // A carry that a wanted output reads in the next iteration is wanted too.
  std::unique_ptr<Graph> pruned;
  std::vector<bool> read;
  for (bool changed = true; changed;) {
    pruned =
        eliminate_dead_code(*restrict(body, std::vector<bool>(body.inputs().size(), true), keep));
    read = inputs_read(*pruned);
    changed = false;
    for (int i = 0; i < layout.carries; ++i) {
      if (read[index(i)] && !keep[index(i)]) keep[index(i)] = changed = true;
    }
  }
  for (int i = 0; i < layout.carries; ++i) read[index(i)] = keep[index(i)];

  Pruned result;
  ScanLayout left;
  left.length = layout.length;
  left.reverse = layout.reverse;
  int input = 0;
  const auto keep_operands = [&](int count, int& left_count) {
    for (int i = 0; i < count; ++i, ++input) {
      if (!read[index(input)]) continue;
      result.operands.push_back(index(input));
      ++left_count;
    }
  };
  keep_operands(layout.carries, left.carries);
  keep_operands(layout.invariants, left.invariants);
  keep_operands(layout.stacked_in, left.stacked_in);
  for (int list = 0; list < layout.lists_in; ++list, ++input) {
    if (!read[index(input)]) continue;
    ++left.lists_in;
    for (int64_t i = 0; i < layout.length; ++i) {
      result.operands.push_back(index(layout.list_operand(list, i)));
    }
  }
  for (int i = 0; i < layout.carries + layout.stacked_out; ++i) {
    if (!keep[index(i)]) continue;
    result.results.push_back(index(i));
    if (i >= layout.carries) ++left.stacked_out;
  }
  for (int list = 0; list < layout.lists_out; ++list) {
    if (!keep[index(layout.carries + layout.stacked_out + list)]) continue;
    ++left.lists_out;
    for (int64_t i = 0; i < layout.length; ++i) {
      result.results.push_back(index(layout.list_result(list, i)));
    }
  }
  result.attributes = left.attributes();
  result.bodies = {restrict(*pruned, read, std::vector<bool>(pruned->outputs().size(), true))};
  return result;
}

Pruned prune(const Node& node, const std::vector<bool>& live) {
  if (node.op == &kScan) return prune_scan(node, live);
  Pruned result{node.attributes, {}, all_of(node.operands.size()), all_of(node.results.size())};
  for (const auto& body : node.bodies) result.bodies.push_back(eliminate_dead_code(*body));
  return result;
}

}  // namespace

std::unique_ptr<Graph> eliminate_dead_code(const Graph& graph) {
  const size_t count = graph.nodes().size();
  std::unordered_set<ValueId> live;
  for (const Output& output : graph.outputs()) live.insert(output.value);
  std::vector<std::unique_ptr<Pruned>> kept(count);
  for (size_t n = count; n-- > 0;) {
    const Node& node = graph.nodes()[n];
    std::vector<bool> live_results;
    bool any = false;
    for (ValueId id : node.results) {
      live_results.push_back(live.contains(id));
      any |= live_results.back();
    }
    if (!any) continue;
    kept[n] = std::make_unique<Pruned>(prune(node, live_results));
    for (size_t i : kept[n]->operands) live.insert(node.operands[i]);
  }

  auto result = std::make_unique<Graph>();
  std::unordered_map<ValueId, Value> known;
  for (const Input& input : graph.inputs()) {
    known.emplace(input.value, result->input(input.name, graph.type(input.value), input.kind));
  }
  for (size_t n = 0; n < count; ++n) {
    if (!kept[n]) continue;
    const Node& node = graph.nodes()[n];
    Node left;
    left.op = node.op;
    left.attributes = kept[n]->attributes;
    left.bodies = kept[n]->bodies;
    left.scope = node.scope;
    std::vector<Value> operands;
    for (size_t i : kept[n]->operands) operands.push_back(known.at(node.operands[i]));
    const std::vector<Value> results = result->add_like(left, operands);
    for (size_t i = 0; i < results.size(); ++i) {
      known.emplace(node.results[kept[n]->results[i]], results[i]);
    }
  }
  for (const Output& output : graph.outputs()) {
    if (output.donated_input < 0) {
      result->output(output.name, known.at(output.value));
    } else {
      const ValueId replaced = graph.inputs()[static_cast<size_t>(output.donated_input)].value;
      result->output(output.name, known.at(output.value), known.at(replaced));
    }
  }
  return result;
}

}  // namespace graft
