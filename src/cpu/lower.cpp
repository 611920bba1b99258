#include "cpu/lower.h"

#include <algorithm>
#include <array>
#include <map>

#include "cpu/kernel.h"
#include "ir/logical_axes.h"
#include "ir/primitives.h"
#include "ir/scan.h"

namespace graft::cpu {
namespace {

std::vector<Type> types_of(const Graph& graph, const std::vector<ValueId>& ids) {
  std::vector<Type> types;
  types.reserve(ids.size());
  for (ValueId id : ids) types.push_back(graph.type(id));
  return types;
}

bool is_control(const Op* op) { return op == &kScan || op == &kCase; }

class Lowering {
 public:
  std::unique_ptr<Graph> run(const Graph& from) {
    auto to = std::make_unique<Graph>();
    std::vector<Value> known(static_cast<size_t>(from.value_count()));
    for (const Input& input : from.inputs()) {
      known[static_cast<size_t>(input.value)] =
          to->input(input.name, from.type(input.value), input.kind);
    }
    copy_nodes(from, *to, known);
    for (const Output& output : from.outputs()) {
      const Value image = known[static_cast<size_t>(output.value)];
      if (output.donated_input < 0) {
        to->output(output.name, image);
      } else {
        const auto replaced = static_cast<size_t>(output.donated_input);
        to->output(output.name, image, to->value(to->inputs()[replaced].value));
      }
    }
    return to;
  }

 private:
  void copy_nodes(const Graph& from, Graph& to, std::vector<Value>& known) {
    for (const Node& node : from.nodes()) {
      std::vector<Value> operands;
      for (ValueId id : node.operands) operands.push_back(known[static_cast<size_t>(id)]);
      const std::vector<Value> results = copy_node(from, node, to, operands);
      for (size_t i = 0; i < results.size(); ++i) {
        known[static_cast<size_t>(node.results[i])] = results[i];
      }
    }
  }

  std::vector<Value> copy_node(const Graph& from, const Node& node, Graph& to,
                               const std::vector<Value>& operands) {
    if (is_control(node.op)) return copy_control(node, to, operands);
    if (node.op == &kSplat && from.type(node.results[0]).elements() != 1) {
      const Type& type = from.type(node.results[0]);
      const Value one = scalar(to, node.attributes.f64("value"), type.dtype);
      return {broadcast_in_dim(one, type.shape, {})};
    }
    if (node.op == &kConstant || is_view(from, node)) return to.add_like(node, operands);
    const std::vector<Type> in = types_of(from, node.operands), out = types_of(from, node.results);
    if (find_kernel(node, in, out) != nullptr) return to.add_like(node, operands);
    if (node.op->decompose == nullptr) {
      throw Error(fmt::format("{} has no native kernel for {}", node.op->name,
                              in.empty() ? to_string(out.at(0)) : to_string(in[0])),
                  node.scope, "use another element type or executor");
    }
    return decompose_node(node, to, operands, in);
  }

  // Through a graph of its own, so that what the decomposition uses is lowered in turn.
  std::vector<Value> decompose_node(const Node& node, Graph& to, const std::vector<Value>& operands,
                                    const std::vector<Type>& types) {
    Graph fragment;
    std::vector<Value> inputs;
    for (const Type& type : types) inputs.push_back(fragment.input("", type));
    std::vector<Value> results;
    {
      const Graph::Scope scope = fragment.scope(node.scope);
      results = node.op->decompose(fragment, inputs, {types, node.attributes, node.bodies});
    }
    std::vector<Value> known(static_cast<size_t>(fragment.value_count()));
    for (size_t i = 0; i < inputs.size(); ++i)
      known[static_cast<size_t>(inputs[i].id())] = operands[i];
    copy_nodes(fragment, to, known);
    std::vector<Value> images;
    for (Value v : results) images.push_back(known[static_cast<size_t>(v.id())]);
    return images;
  }

  std::vector<Value> copy_control(const Node& node, Graph& to, const std::vector<Value>& operands) {
    Node lowered = node;
    for (auto& body : lowered.bodies) {
      auto& done = bodies_[body];
      if (done == nullptr) done = run(*body);
      body = done;
    }
    return to.add_like(lowered, operands);
  }

  // A body may be used more than once. The key keeps it alive: those of a decomposition are
  // temporary, and an address that is used again would find another body's lowering.
  std::map<std::shared_ptr<const Graph>, std::shared_ptr<const Graph>> bodies_;
};

bool keeps_order(const Shape& shape, const std::vector<int64_t>& permutation) {
  int64_t last = -1;
  for (int64_t axis : permutation) {
    if (shape[static_cast<size_t>(axis)] == 1) continue;
    if (axis < last) return false;
    last = axis;
  }
  return true;
}

}  // namespace

std::unique_ptr<Graph> lower(const Graph& graph) { return Lowering().run(graph); }

bool is_view(const Graph& graph, const Node& node) {
  if (node.op == &kReshape || node.op == &kLogicalAxes) return true;
  if (node.op == &kConcatenate) return node.operands.size() == 1;
  const bool candidate = node.op == &kBroadcastInDim || node.op == &kTranspose ||
                         node.op == &kSlice || node.op == &kPad || node.op == &kConvert;
  if (!candidate) return false;
  const Type& from = graph.type(node.operands[0]);
  const Type& to = graph.type(node.results[0]);
  if (node.op == &kConvert) return from.dtype == to.dtype;
  if (node.op == &kTranspose) {
    return keeps_order(from.shape, node.attributes.integers("permutation"));
  }
  if (node.op == &kBroadcastInDim) {
    const std::vector<int64_t>& dims = node.attributes.integers("dims");
    return from.elements() == to.elements() && std::is_sorted(dims.begin(), dims.end());
  }
  return from.shape == to.shape;
}

bool is_elementwise(const Op* op) {
  static constexpr std::array kOps = {
      &kNeg, &kExp, &kLog,       &kLog1p,      &kSqrt,    &kRsqrt, &kTanh,     &kLogistic,
      &kCos, &kSin, &kAbs,       &kFloor,      &kSign,    &kNot,   &kIsFinite, &kConvert,
      &kAdd, &kSub, &kMul,       &kDiv,        &kMax,     &kMin,   &kPow,      &kAnd,
      &kOr,  &kXor, &kShiftLeft, &kShiftRight, &kCompare, &kSelect};
  return std::find(kOps.begin(), kOps.end(), op) != kOps.end();
}

ValueId kernel_operand(const Graph& graph, const Node& node, size_t i) {
  ValueId id = node.operands[i];
  if (!is_elementwise(node.op)) return id;
  while (graph.defining_node(id) >= 0) {
    const Node& maker = graph.nodes()[static_cast<size_t>(graph.defining_node(id))];
    if (maker.op != &kBroadcastInDim && maker.op != &kReshape) break;
    if (graph.type(maker.operands[0]).elements() != 1) break;
    id = maker.operands[0];
  }
  return id;
}

}  // namespace graft::cpu
