#include "ir/graph.h"

#include <fmt/format.h>

#include <unordered_set>

#include "ir/scan.h"

namespace graft {

std::string to_string(const Type& type) {
  return std::string(dtype_name(type.dtype)) + to_string(type.shape);
}

const Type& Value::type() const {
  GRAFT_CHECK(defined(), "an undefined value has no type");
  return graph_->type(id_);
}

int64_t Value::dim(int axis) const {
  const int rank_of = rank();
  const int positive = axis < 0 ? axis + rank_of : axis;
  GRAFT_CHECK(positive >= 0 && positive < rank_of, "axis {} of {}", axis, to_string(type()));
  return shape()[static_cast<size_t>(positive)];
}

ValueId Graph::new_value(Type type) {
  values_.push_back({std::move(type), -1, -1});
  return static_cast<ValueId>(values_.size() - 1);
}

void Graph::define(ValueId id, int node, int result) {
  ValueInfo& info = values_[static_cast<size_t>(id)];
  info.node = node;
  info.result = result;
}

void Graph::replace_node(int index, Node node) {
  for (size_t i = 0; i < node.results.size(); ++i) {
    define(node.results[i], index, static_cast<int>(i));
  }
  nodes_[static_cast<size_t>(index)] = std::move(node);
}

Value Graph::input(std::string name, Type type, VariableKind kind) {
  const ValueId id = new_value(std::move(type));
  define(id, -1, static_cast<int>(inputs_.size()));
  inputs_.push_back({id, std::move(name), kind});
  return Value(this, id);
}

int Graph::input_index(ValueId id) const { return defining_node(id) < 0 ? result_index(id) : -1; }

void Graph::output(std::string name, Value value) {
  GRAFT_CHECK(value.defined() && &value.graph() == this, "output \"{}\" is not of this graph",
              name);
  outputs_.push_back({value.id(), std::move(name), -1});
}

void Graph::output(std::string name, Value value, Value replaces_input) {
  output(std::move(name), value);
  const int index = input_index(replaces_input.id());
  GRAFT_CHECK(index >= 0, "output \"{}\" can only replace an input", outputs_.back().name);
  GRAFT_CHECK(replaces_input.type() == value.type(), "output \"{}\" {} replaces an input {}",
              outputs_.back().name, to_string(value.type()), to_string(replaces_input.type()));
  outputs_.back().donated_input = index;
}

std::vector<Value> Graph::add(const Op& op, std::span<const Value> operands, Attributes attributes,
                              std::vector<std::shared_ptr<const Graph>> bodies) {
  Node node;
  node.op = &op;
  node.attributes = std::move(attributes);
  node.bodies = std::move(bodies);
  node.scope = scope_;
  std::vector<Type> types;
  for (const Value& operand : operands) {
    GRAFT_CHECK(operand.defined() && &operand.graph() == this,
                "{}: an operand is not of this graph", op.name);
    node.operands.push_back(operand.id());
    types.push_back(operand.type());
  }
  const std::vector<Type> result_types = op.infer({types, node.attributes, node.bodies});
  const int index = static_cast<int>(nodes_.size());
  std::vector<Value> results;
  for (size_t i = 0; i < result_types.size(); ++i) {
    node.results.push_back(new_value(result_types[i]));
    define(node.results.back(), index, static_cast<int>(i));
    results.push_back(Value(this, node.results.back()));
  }
  nodes_.push_back(std::move(node));
  return results;
}

std::vector<Value> Graph::add_like(const Node& node, std::span<const Value> operands) {
  std::vector<Value> results = add(*node.op, operands, node.attributes, node.bodies);
  nodes_.back().scope = node.scope;
  return results;
}

Value Graph::add1(const Op& op, std::span<const Value> operands, Attributes attributes) {
  std::vector<Value> results = add(op, operands, std::move(attributes));
  GRAFT_CHECK(results.size() == 1, "{} has {} results", op.name, results.size());
  return results[0];
}

Graph::Scope::Scope(Graph& graph, std::string_view name)
    : graph_(graph), length_(graph.scope_.size()) {
  if (!graph_.scope_.empty()) graph_.scope_ += '/';
  graph_.scope_ += name;
}

Graph::Scope::~Scope() { graph_.scope_.resize(length_); }

namespace {

std::string value_list(const std::vector<ValueId>& ids) {
  std::string text;
  for (ValueId id : ids) text += (text.empty() ? "%" : ", %") + std::to_string(id);
  return text;
}

void print(const Graph& graph, const std::string& indent, std::string& text) {
  for (const Input& input : graph.inputs()) {
    text += fmt::format("{}%{} = input \"{}\" {} : {}\n", indent, input.value, input.name,
                        variable_kind_name(input.kind), to_string(graph.type(input.value)));
  }
  for (const Node& node : graph.nodes()) {
    text += fmt::format("{}{} = {}({})", indent, value_list(node.results), node.op->name,
                        value_list(node.operands));
    if (!node.attributes.empty()) text += " " + node.attributes.to_string();
    text += " :";
    for (ValueId id : node.results) {
      text += (id == node.results[0] ? " " : ", ") + to_string(graph.type(id));
    }
    if (!node.scope.empty()) text += "  // " + node.scope;
    text += '\n';
    for (const auto& body : node.bodies) {
      text += indent + "{\n";
      print(*body, indent + "  ", text);
      text += indent + "}\n";
    }
  }
  for (const Output& output : graph.outputs()) {
    text += fmt::format("{}output \"{}\" %{}", indent, output.name, output.value);
    if (output.donated_input >= 0) {
      text += fmt::format(" in place of %{}",
                          graph.inputs()[static_cast<size_t>(output.donated_input)].value);
    }
    text += '\n';
  }
}

}  // namespace

std::string to_string(const Graph& graph) {
  std::string text;
  print(graph, "", text);
  return text;
}

void verify(const Graph& graph) {
  std::unordered_set<ValueId> defined;
  for (const Input& input : graph.inputs()) defined.insert(input.value);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    std::vector<Type> types;
    for (ValueId id : node.operands) {
      GRAFT_CHECK(defined.contains(id), "node {} ({}) reads %{} before it is defined", n,
                  node.op->name, id);
      types.push_back(graph.type(id));
    }
    const std::vector<Type> inferred = node.op->infer({types, node.attributes, node.bodies});
    GRAFT_CHECK(inferred.size() == node.results.size(), "node {} ({}) has {} results, not {}", n,
                node.op->name, node.results.size(), inferred.size());
    for (size_t i = 0; i < inferred.size(); ++i) {
      const ValueId id = node.results[i];
      GRAFT_CHECK(graph.type(id) == inferred[i], "node {} ({}) result {} is {}, not {}", n,
                  node.op->name, i, to_string(graph.type(id)), to_string(inferred[i]));
      GRAFT_CHECK(graph.defining_node(id) == static_cast<int>(n) && defined.insert(id).second,
                  "%{} is defined twice", id);
    }
    for (const auto& body : node.bodies) verify(*body);
  }
  for (const Output& output : graph.outputs()) {
    GRAFT_CHECK(defined.contains(output.value), "output \"{}\" is not defined", output.name);
    if (output.donated_input < 0) continue;
    const Input& input = graph.inputs().at(static_cast<size_t>(output.donated_input));
    GRAFT_CHECK(graph.type(input.value) == graph.type(output.value),
                "output \"{}\" replaces an input of another type", output.name);
  }
}

}  // namespace graft
