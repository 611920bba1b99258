#include "pjrt/lower.h"

#include <algorithm>
#include <set>

#include "ir/passes.h"
#include "ir/primitives.h"
#include "pjrt/stacks.h"

namespace graft::pjrt {
namespace {

Shape with_axis(const Shape& shape, size_t extent) {
  Shape stacked = shape;
  stacked.insert(stacked.begin(), static_cast<int64_t>(extent));
  return stacked;
}

bool is_elementwise(const Op* op) {
  static const std::set<const Op*> ops = {
      &kNeg, &kExp, &kLog,       &kLog1p,      &kSqrt,    &kRsqrt, &kTanh,     &kLogistic,
      &kCos, &kSin, &kAbs,       &kFloor,      &kSign,    &kNot,   &kIsFinite, &kConvert,
      &kAdd, &kSub, &kMul,       &kDiv,        &kMax,     &kMin,   &kPow,      &kAnd,
      &kOr,  &kXor, &kShiftLeft, &kShiftRight, &kCompare, &kSelect};
  return ops.contains(op);
}

// Copies a graph, with what `stacks` found held as arrays.
class Restacker {
 public:
  explicit Restacker(const Stacks& stacks)
      : stacks_(stacks), from_(*stacks.graph), to_(std::make_unique<Graph>()) {}

  // Which inputs of the new graph stand for which of the old: a stack, or a single input.
  struct Entry {
    int stack = -1;
    std::vector<int> inputs;
  };

  const std::vector<Entry>& add_inputs() {
    for (size_t i = 0; i < from_.inputs().size(); ++i) {
      const Input& input = from_.inputs()[i];
      const Type& type = from_.type(input.value);
      const auto place = stacks_.place.find(input.value);
      if (place == stacks_.place.end()) {
        singles_[input.value] = to_->input(input.name, type, input.kind);
        entries_.push_back({-1, {static_cast<int>(i)}});
        continue;
      }
      const auto [stack, index] = place->second;
      if (index != 0) continue;  // it came with the first member
      const auto& members = stacks_.stacks[static_cast<size_t>(stack)].members;
      arrays_[stack] =
          to_->input(input.name, {type.dtype, with_axis(type.shape, members.size())}, input.kind);
      Entry& entry = entries_.emplace_back(Entry{stack, {}});
      for (ValueId member : members) entry.inputs.push_back(from_.input_index(member));
    }
    return entries_;
  }

  void add_nodes() {
    for (size_t n = 0; n < from_.nodes().size(); ++n) {
      const Node& node = from_.nodes()[n];
      const Graph::Scope scope = to_->scope(node.scope);
      const auto group = stacks_.group_of_node.find(static_cast<int>(n));
      if (group != stacks_.group_of_node.end()) {
        // Once, where the first of its nodes stands.
        if (done_.insert(group->second).second) {
          add_group(stacks_.groups[static_cast<size_t>(group->second)]);
        }
      } else if (node.op == &kScan) {
        add_scan_node(static_cast<int>(n));
      } else if (node.op == &kConcatenate && is_long_vector(node)) {
        singles_[node.results[0]] = gather_scalars(node);
      } else {
        add_plain(node);
      }
    }
  }

  Value single(ValueId id) {
    if (const auto it = singles_.find(id); it != singles_.end()) return it->second;
    const auto [stack, index] = stacks_.place.at(id);
    const Value row = slice(arrays_.at(stack), 0, index, index + 1);
    return singles_[id] = reshape(row, from_.type(id).shape);
  }

  // The members as one array, without a copy where they are a stack already.
  Value array(std::span<const ValueId> members) {
    const auto first = stacks_.place.find(members[0]);
    if (first != stacks_.place.end()) {
      const auto [stack, begin] = first->second;
      const auto& all = stacks_.stacks[static_cast<size_t>(stack)].members;
      const auto end = static_cast<size_t>(begin) + members.size();
      if (end <= all.size() && std::equal(members.begin(), members.end(), all.begin() + begin)) {
        if (members.size() == all.size()) return arrays_.at(stack);
        return slice(arrays_.at(stack), 0, begin, static_cast<int64_t>(end));
      }
    }
    const Shape shape = with_axis(from_.type(members[0]).shape, members.size());
    if (std::all_of(members.begin(), members.end(), [&](ValueId m) { return m == members[0]; })) {
      std::vector<int64_t> dims;
      for (size_t axis = 1; axis < shape.size(); ++axis) dims.push_back(static_cast<int64_t>(axis));
      return broadcast_in_dim(single(members[0]), shape, dims);
    }
    std::vector<Value> parts;
    for (ValueId id : members) {
      parts.push_back(reshape(single(id), with_axis(from_.type(id).shape, 1)));
    }
    return concatenate(parts, 0);
  }

  Graph& graph() { return *to_; }
  std::unique_ptr<Graph> take() { return std::move(to_); }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  void add_plain(const Node& source) {
    Node node = source;
    for (auto& body : node.bodies) body = stack_lists(*body).graph;
    std::vector<Value> operands;
    for (ValueId id : node.operands) operands.push_back(single(id));
    const std::vector<Value> results = to_->add_like(node, operands);
    for (size_t i = 0; i < results.size(); ++i) singles_[node.results[i]] = results[i];
  }

  void set_array(std::span<const ValueId> members, Value value) {
    const int stack = stacks_.find(members);
    GRAFT_CHECK(stack >= 0, "results that are made together are a stack");
    arrays_[stack] = value;
  }

  void add_group(const NodeGroup& group) {
    const auto node = [&](size_t i) -> const Node& {
      return from_.nodes()[static_cast<size_t>(group.nodes[i])];
    };
    const Node& model = node(0);
    std::vector<Value> common, columns;
    for (size_t k = 0; k < group.columns.size(); ++k) {
      if (group.columns[k] < 0) {
        common.push_back(single(model.operands[k]));
      } else {
        columns.push_back(arrays_.at(group.columns[k]));
      }
    }
    std::vector<Value> results;
    if (common.empty() && is_elementwise(model.op)) {
      results = to_->add_like(model, columns);
    } else {
      ScanOperands operands;
      operands.invariants = common;
      operands.stacked = columns;
      results = scan(*to_, static_cast<int64_t>(group.nodes.size()), operands, [&](ScanBody& body) {
                  std::vector<Value> values;
                  size_t next_common = 0, next_column = 0;
                  for (int column : group.columns) {
                    values.push_back(column < 0 ? body.invariant(next_common++)
                                                : body.stacked(next_column++));
                  }
                  for (Value v : body.graph().add_like(model, values)) body.stacked_out(v);
                }).stacked;
    }
    for (size_t r = 0; r < results.size(); ++r) {
      std::vector<ValueId> members;
      for (size_t i = 0; i < group.nodes.size(); ++i) members.push_back(node(i).results[r]);
      set_array(members, results[r]);
    }
  }

  void add_scan_node(int index) {
    const Node& node = from_.nodes()[static_cast<size_t>(index)];
    const ScanLayout old = ScanLayout::of(node);
    Restacker body(*stacks_.bodies.at(index));
    body.add_inputs();
    body.add_nodes();

    ScanLayout layout;
    layout.length = old.length;
    layout.reverse = old.reverse;
    layout.stacked_in = old.stacked_in + old.lists_in;
    layout.stacked_out = old.stacked_out + old.lists_out;
    std::vector<Value> operands;
    std::vector<const Entry*> carries;
    for (const Entry& entry : body.entries()) {
      const int first = entry.inputs[0];
      if (first >= old.carries + old.invariants) break;
      if (first < old.carries) carries.push_back(&entry);
      ++(first < old.carries ? layout.carries : layout.invariants);
      std::vector<ValueId> members;
      for (int input : entry.inputs) members.push_back(node.operands[static_cast<size_t>(input)]);
      operands.push_back(entry.stack < 0 ? single(members[0]) : array(members));
    }
    for (int i = 0; i < old.stacked_in; ++i) {
      operands.push_back(
          single(node.operands[static_cast<size_t>(old.carries + old.invariants + i)]));
    }
    for (int list = 0; list < old.lists_in; ++list) {
      operands.push_back(array(list_members(node.operands, old.list_operand(list, 0), old)));
    }

    const auto& outputs = node.bodies[0]->outputs();
    for (const Entry* entry : carries) {
      std::vector<ValueId> members;
      for (int i : entry->inputs) members.push_back(outputs[static_cast<size_t>(i)].value);
      body.graph().output("carry",
                          entry->stack < 0 ? body.single(members[0]) : body.array(members));
    }
    for (size_t i = static_cast<size_t>(old.carries); i < outputs.size(); ++i) {
      body.graph().output("slice", body.single(outputs[i].value));
    }
    const std::vector<Value> results = add_scan(*to_, layout, operands, body.take());

    size_t next = 0;
    for (const Entry& entry : body.entries()) {
      if (next == static_cast<size_t>(layout.carries)) break;
      std::vector<ValueId> members;
      for (int i : entry.inputs) members.push_back(node.results[static_cast<size_t>(i)]);
      if (entry.stack < 0) {
        singles_[members[0]] = results[next++];
      } else {
        set_array(members, results[next++]);
      }
    }
    for (int i = 0; i < old.stacked_out; ++i) {
      singles_[node.results[static_cast<size_t>(old.carries + i)]] = results[next++];
    }
    for (int list = 0; list < old.lists_out; ++list) {
      const auto members = list_members(node.results, old.list_result(list, 0), old);
      if (members.size() == 1) {
        singles_[members[0]] = reshape(results[next++], from_.type(members[0]).shape);
      } else {
        set_array(members, results[next++]);
      }
    }
  }

  static std::vector<ValueId> list_members(const std::vector<ValueId>& values, int first,
                                           const ScanLayout& layout) {
    const auto begin = values.begin() + first;
    return {begin, begin + static_cast<std::ptrdiff_t>(layout.length)};
  }

  // A vector put together of many stacks' scalars: one operation instead of one a scalar.
  bool is_long_vector(const Node& node) const {
    return node.operands.size() > 8 &&
           std::all_of(node.operands.begin(), node.operands.end(),
                       [&](ValueId id) { return from_.type(id).shape == Shape{1}; });
  }

  Value gather_scalars(const Node& node) {
    std::vector<Value> pool;
    std::map<int, int64_t> first_of_stack;
    int64_t size = 0;
    Tensor order = Tensor::empty(DType::kS32, {static_cast<int64_t>(node.operands.size())});
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const auto place = stacks_.place.find(node.operands[i]);
      int64_t at = size;
      if (place == stacks_.place.end()) {
        pool.push_back(single(node.operands[i]));
        ++size;
      } else {
        const auto [stack, index] = place->second;
        const auto [it, is_new] = first_of_stack.emplace(stack, size);
        if (is_new) {
          pool.push_back(reshape(arrays_.at(stack), {-1}));
          size += pool.back().dim(0);
        }
        at = it->second + index;
      }
      order.data<int32_t>()[i] = static_cast<int32_t>(at);
    }
    return gather(concatenate(pool, 0), literal(*to_, order));
  }

  const Stacks& stacks_;
  const Graph& from_;
  std::unique_ptr<Graph> to_;
  std::vector<Entry> entries_;
  std::unordered_map<ValueId, Value> singles_;
  std::unordered_map<int, Value> arrays_;  // by stack
  std::set<int> done_;                     // groups
};

std::vector<std::string> input_names(const Graph& graph, const std::vector<int>& inputs) {
  std::vector<std::string> names;
  for (int i : inputs) names.push_back(graph.inputs()[static_cast<size_t>(i)].name);
  return names;
}

// Outputs of the new graph: a stack of inputs whose members are replaced comes out as a stack; so
// do stacks of which every member is asked for.
class OutputWriter {
 public:
  OutputWriter(const Graph& graph, const Stacks& stacks, Restacker& restacker, Lowered& lowered)
      : graph_(graph), stacks_(stacks), restacker_(restacker), lowered_(lowered) {
    for (size_t i = 0; i < graph.outputs().size(); ++i) {
      const Output& output = graph.outputs()[i];
      if (output.donated_input >= 0) by_input_[output.donated_input] = i;
      by_value_.emplace(output.value, i);
    }
  }

  void run() {
    const auto& entries = restacker_.entries();
    for (size_t e = 0; e < entries.size(); ++e) {
      if (entries[e].stack < 0) continue;
      const bool any = std::any_of(entries[e].inputs.begin(), entries[e].inputs.end(),
                                   [&](int i) { return by_input_.contains(i); });
      if (any) replace_stack(entries[e], e);
    }
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      if (!written_.contains(i)) write(i);
    }
  }

 private:
  void replace_stack(const Restacker::Entry& entry, size_t index) {
    std::vector<ValueId> members;
    Bundle bundle{{}, true};
    for (int input : entry.inputs) {
      const auto at = by_input_.find(input);
      const Input& old = graph_.inputs()[static_cast<size_t>(input)];
      if (at == by_input_.end()) {
        members.push_back(old.value);  // stays as it is
        bundle.names.push_back(old.name);
      } else {
        members.push_back(graph_.outputs()[at->second].value);
        bundle.names.push_back(graph_.outputs()[at->second].name);
        written_.insert(at->second);
      }
    }
    Graph& to = restacker_.graph();
    to.output(bundle.names[0], restacker_.array(members), to.value(to.inputs()[index].value));
    lowered_.outputs.push_back(std::move(bundle));
  }

  void write(size_t i) {
    const Output& output = graph_.outputs()[i];
    Graph& to = restacker_.graph();
    if (output.donated_input >= 0) {
      const ValueId replaced = graph_.inputs()[static_cast<size_t>(output.donated_input)].value;
      to.output(output.name, restacker_.single(output.value), restacker_.single(replaced));
      lowered_.outputs.push_back({{output.name}, false});
      return;
    }
    if (const auto place = stacks_.place.find(output.value); place != stacks_.place.end()) {
      const auto& members = stacks_.stacks[static_cast<size_t>(place->second.first)].members;
      if (all_wanted(members)) {
        Bundle bundle{{}, true};
        for (ValueId member : members) {
          const size_t at = by_value_.at(member);
          bundle.names.push_back(graph_.outputs()[at].name);
          written_.insert(at);
        }
        to.output(bundle.names[0], restacker_.array(members));
        lowered_.outputs.push_back(std::move(bundle));
        return;
      }
    }
    to.output(output.name, restacker_.single(output.value));
    lowered_.outputs.push_back({{output.name}, false});
  }

  bool all_wanted(const std::vector<ValueId>& members) const {
    return std::all_of(members.begin(), members.end(), [&](ValueId member) {
      const auto at = by_value_.find(member);
      return at != by_value_.end() && !written_.contains(at->second) &&
             graph_.outputs()[at->second].donated_input < 0;
    });
  }

  const Graph& graph_;
  const Stacks& stacks_;
  Restacker& restacker_;
  Lowered& lowered_;
  std::unordered_map<int, size_t> by_input_;
  std::unordered_map<ValueId, size_t> by_value_;
  std::set<size_t> written_;
};

}  // namespace

Lowered stack_lists(const Graph& graph) {
  std::vector<int> kinds;
  for (const Input& input : graph.inputs()) {
    // Data is bound by its name, one by one.
    const bool state = input.kind != VariableKind::kData && input.kind != VariableKind::kRng;
    kinds.push_back(state ? static_cast<int>(input.kind) : -1);
  }
  const std::unique_ptr<Stacks> stacks = find_stacks(graph, kinds);
  Restacker restacker(*stacks);
  Lowered lowered;
  for (const auto& entry : restacker.add_inputs()) {
    lowered.inputs.push_back({input_names(graph, entry.inputs), entry.stack >= 0});
  }
  restacker.add_nodes();
  OutputWriter(graph, *stacks, restacker, lowered).run();
  lowered.graph = restacker.take();
  return lowered;
}

Lowered lower(const Graph& graph) {
  Lowered lowered = stack_lists(*eliminate_dead_code(graph));
  lowered.graph = eliminate_dead_code(*decompose(*lowered.graph));
  verify(*lowered.graph);
  return lowered;
}

}  // namespace graft::pjrt
