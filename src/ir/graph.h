#pragma once
// The graph: a list of operations in execution order over typed values, each defined once.
//
// A train step is one Graph: (state, batch, scalars) -> (new state, metrics). Ordinary C++
// functions build it through Graph::add, which applies the operation's shape rule and so never
// admits an ill-typed node; autodiff (ir/autodiff.h) appends its gradient; passes (ir/passes.h)
// simplify it; an executor runs it. An operation with a body (`scan`) holds it as a Graph of its
// own: a body reads nothing but its inputs.
//
//   Graph g;
//   Value x = g.input("x", {DType::kF32, {2, 3}});
//   Value y = g.add(kExp, {x});          // or exp(x), see ops/primitives.h
//   g.output("y", y);

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"
#include "ir/attributes.h"
#include "ir/variable.h"

namespace graft {

class Graph;
struct Node;

// What an array is: element type and extents.
struct Type {
  DType dtype = DType::kF32;
  Shape shape;

  int64_t elements() const { return element_count(shape); }
  size_t bytes() const { return dtype_bytes(dtype, static_cast<size_t>(elements())); }
  friend bool operator==(const Type&, const Type&) = default;
};
std::string to_string(const Type& type);  // "f32[2, 3]"

using ValueId = int32_t;

// A handle to one value of a graph; cheap to copy, undefined when default-made.
class Value {
 public:
  Value() = default;
  Value(Graph* graph, ValueId id) : graph_(graph), id_(id) {}

  bool defined() const { return graph_ != nullptr; }
  Graph& graph() const { return *graph_; }
  ValueId id() const { return id_; }
  const Type& type() const;
  const Shape& shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }
  int64_t dim(int axis) const;  // negative counts from the end
  int rank() const { return static_cast<int>(shape().size()); }
  friend bool operator==(const Value&, const Value&) = default;

 private:
  Graph* graph_ = nullptr;
  ValueId id_ = -1;
};

// What a shape rule, a decomposition or a kernel sees of a node.
struct Call {
  std::span<const Type> operands;
  const Attributes& attributes;
  std::span<const std::shared_ptr<const Graph>> bodies;
};

class GradientContext;

// An operation. Primitives (ir decomposes no further; StableHLO has them) and composites (which
// also say how they are made of primitives) are the same struct; each is one constant, defined in
// src/ops beside its siblings.
struct Op {
  std::string_view name;
  bool primitive = false;

  // Shape rule: the types of the results. Raises Error naming the operation and the shapes.
  std::vector<Type> (*infer)(const Call& call) = nullptr;

  // Reverse mode: given the cotangents of the results, sets those of the operands. Null: the
  // operation has no gradient (integers, comparisons), and a request for one is an error.
  void (*gradient)(GradientContext& context) = nullptr;

  // Composites: the same computation in primitives (possibly through scans). One value a result.
  std::vector<Value> (*decompose)(Graph& graph, std::span<const Value> operands,
                                  const Call& call) = nullptr;

  // Results are kept by the rematerialisation policy `minimal` (they cost a GEMM or more to
  // recompute).
  bool expensive = false;

  // A pure operation of the same operands and attributes whose first results equal this one's;
  // where both stand in a graph, the common-subexpression pass keeps that one alone.
  const Op* subsumed_by = nullptr;
};

struct Node {
  const Op* op = nullptr;
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  Attributes attributes;
  std::vector<std::shared_ptr<const Graph>> bodies;
  std::string scope;  // where in the model it comes from, for printing: "layers/mlp"
};

struct Input {
  ValueId value;
  std::string name;
  VariableKind kind;
};

struct Output {
  ValueId value;
  std::string name;
  int donated_input = -1;  // index of the input whose storage it takes over, or -1
};

class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;  // values hold pointers to their graph; see passes.h for copies
  Graph& operator=(const Graph&) = delete;

  Value input(std::string name, Type type, VariableKind kind = VariableKind::kData);
  // Names a result. An output that replaces the state of an input (a parameter after its update)
  // donates it: the executor may write it in place; the types must agree.
  void output(std::string name, Value value);
  void output(std::string name, Value value, Value replaces_input);

  std::vector<Value> add(const Op& op, std::span<const Value> operands, Attributes attributes = {},
                         std::vector<std::shared_ptr<const Graph>> bodies = {});
  // Adds a copy of a node of another graph on operands of this one; its scope comes along.
  std::vector<Value> add_like(const Node& node, std::span<const Value> operands);
  // For operations of one result.
  Value add1(const Op& op, std::span<const Value> operands, Attributes attributes = {});
  Value add1(const Op& op, std::initializer_list<Value> operands, Attributes attributes = {}) {
    return add1(op, std::span<const Value>(operands.begin(), operands.size()),
                std::move(attributes));
  }

  const std::vector<Input>& inputs() const { return inputs_; }
  const std::vector<Output>& outputs() const { return outputs_; }
  // References to nodes and types stay valid while nodes are added.
  const std::deque<Node>& nodes() const { return nodes_; }
  // For passes: replaces a node by one whose results are old values of it or fresh ones
  // (new_value).
  void replace_node(int index, Node node);
  ValueId new_value(Type type);

  const Type& type(ValueId id) const { return values_[static_cast<size_t>(id)].type; }
  // The node that defines a value, or -1 for an input; and which result of it.
  int defining_node(ValueId id) const { return values_[static_cast<size_t>(id)].node; }
  int result_index(ValueId id) const { return values_[static_cast<size_t>(id)].result; }
  int input_index(ValueId id) const;  // -1 if it is not an input
  int value_count() const { return static_cast<int>(values_.size()); }
  Value value(ValueId id) { return Value(this, id); }

  // Names the part of the model that nodes added from now on belong to.
  class Scope {
   public:
    Scope(Graph& graph, std::string_view name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Graph& graph_;
    size_t length_;
  };
  Scope scope(std::string_view name) { return Scope(*this, name); }

 private:
  struct ValueInfo {
    Type type;
    int node = -1;
    int result = 0;
  };
  void define(ValueId id, int node, int result);

  std::deque<ValueInfo> values_;
  std::deque<Node> nodes_;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::string scope_;
};

// A readable form, one operation a line: %7 = dot_general(%3, %4) {...} : f32[2, 3]  // layers/mlp
std::string to_string(const Graph& graph);

// Checks what Graph::add cannot: every operand defined before use, types as the shape rules say,
// donated types equal, bodies closed. Raises std::logic_error with the node.
void verify(const Graph& graph);

}  // namespace graft
