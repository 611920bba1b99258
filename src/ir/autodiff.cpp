#include "ir/autodiff.h"

#include "ir/primitives.h"

namespace graft {

std::optional<Remat> remat_from_name(std::string_view name) {
  for (Remat remat : {Remat::kNone, Remat::kMinimal, Remat::kFull}) {
    if (remat_name(remat) == name) return remat;
  }
  return std::nullopt;
}

std::string_view remat_name(Remat remat) {
  switch (remat) {
    case Remat::kNone: return "none";
    case Remat::kMinimal: return "minimal";
    case Remat::kFull: return "full";
  }
  return "?";
}

GradientContext::GradientContext(Graph& graph, int node, std::vector<Value> cotangents,
                                 std::vector<bool> needed, AutodiffOptions options)
    : graph_(graph),
      node_(node),
      cotangents_(std::move(cotangents)),
      needed_(std::move(needed)),
      options_(options),
      operand_gradients_(needed_.size()) {}

Value GradientContext::operand(size_t i) const { return graph_.value(node().operands.at(i)); }
Value GradientContext::result(size_t i) const { return graph_.value(node().results.at(i)); }

void GradientContext::set(size_t i, Value gradient) {
  if (!needs(i)) return;
  const Type& expected = operand(i).type();
  // The gradient of a low-precision weight may come in f32.
  GRAFT_CHECK(gradient.shape() == expected.shape &&
                  (gradient.dtype() == expected.dtype || gradient.dtype() == DType::kF32),
              "{}: the gradient of operand {} is {}, the operand {}", node().op->name, i,
              to_string(gradient.type()), to_string(expected));
  operand_gradients_.at(i) = gradient;
}

namespace {

Value sum_cotangents(Value a, Value b) {
  if (!a.defined()) return b;
  if (a.dtype() != b.dtype()) {
    a = convert(a, DType::kF32);
    b = convert(b, DType::kF32);
  }
  return a + b;
}

}  // namespace

std::vector<Value> vector_jacobian_product(std::span<const Value> of,
                                           std::span<const Value> cotangents,
                                           std::span<const Value> wrt, AutodiffOptions options) {
  GRAFT_CHECK(!of.empty() && of.size() == cotangents.size());
  Graph& graph = of[0].graph();
  const int node_count = static_cast<int>(graph.nodes().size());
  const size_t value_count = static_cast<size_t>(graph.value_count());
  const auto index = [](ValueId id) { return static_cast<size_t>(id); };

  // Forward: what depends on a wrt value.
  std::vector<bool> active(value_count, false);
  for (Value v : wrt) active[index(v.id())] = true;
  for (const Node& node : graph.nodes()) {
    bool any = false;
    for (ValueId id : node.operands) any |= active[index(id)];
    if (!any) continue;
    for (ValueId id : node.results) {
      if (is_float(graph.type(id).dtype)) active[index(id)] = true;
    }
  }

  std::vector<Value> cotangent(value_count);
  for (size_t i = 0; i < of.size(); ++i) {
    GRAFT_CHECK(of[i].type() == cotangents[i].type(), "a {} has a cotangent {}",
                to_string(of[i].type()), to_string(cotangents[i].type()));
    Value& sum = cotangent[index(of[i].id())];
    sum = sum_cotangents(sum, cotangents[i]);
  }

  for (int n = node_count - 1; n >= 0; --n) {
    const Node& node = graph.nodes()[static_cast<size_t>(n)];
    std::vector<bool> needed;
    bool any_needed = false;
    for (ValueId id : node.operands) {
      needed.push_back(active[index(id)]);
      any_needed |= needed.back();
    }
    std::vector<Value> of_results;
    bool any_cotangent = false;
    for (ValueId id : node.results) {
      of_results.push_back(active[index(id)] ? cotangent[index(id)] : Value());
      any_cotangent |= of_results.back().defined();
    }
    if (!any_needed || !any_cotangent) continue;
    GRAFT_CHECK(node.op->gradient != nullptr, "{} has no gradient (in {})", node.op->name,
                node.scope);
    const Graph::Scope scope = graph.scope(node.scope.empty() ? "gradient" : node.scope + "'");
    GradientContext context(graph, n, std::move(of_results), std::move(needed), options);
    node.op->gradient(context);
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const Value gradient = context.results()[i];
      if (!gradient.defined()) continue;
      Value& sum = cotangent[index(node.operands[i])];
      sum = sum_cotangents(sum, gradient);
    }
  }

  std::vector<Value> results;
  for (Value v : wrt) {
    const Value sum = cotangent[index(v.id())];
    results.push_back(sum.defined() ? sum : zeros_like(v));
  }
  return results;
}

std::vector<Value> gradients(Value of, std::span<const Value> wrt, AutodiffOptions options) {
  GRAFT_CHECK(of.rank() == 0, "gradients() is of a scalar, not of {}", to_string(of.type()));
  const Value one = scalar(of.graph(), 1.0, of.dtype());
  return vector_jacobian_product({&of, 1}, {&one, 1}, wrt, options);
}

}  // namespace graft
