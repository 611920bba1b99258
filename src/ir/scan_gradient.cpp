// The gradient of scan: a scan backward over the iterations.
//
// The body and its own backward pass are first put into one joint graph. The rematerialisation
// policy chooses which forward values stay: those become stacked results of the forward scan, and
// the backward body is what remains to be computed from them, from the forward operands, and from
// cotangents. Whatever was not kept is copied into the backward body, that is: computed again.

#include <map>
#include <memory>
#include <set>
#include <unordered_map>

#include "ir/autodiff.h"
#include "ir/logical_axes.h"
#include "ir/passes.h"
#include "ir/primitives.h"
#include "ir/scan.h"

namespace graft {
namespace {

using ValueMap = std::unordered_map<ValueId, Value>;

size_t index(int i) { return static_cast<size_t>(i); }

// Values that cost nothing to make again from what they are made of.
bool is_view(const Op* op) {
  return op == &kConstant || op == &kSplat || op == &kIota || op == &kReshape ||
         op == &kBroadcastInDim || op == &kLogicalAxes;
}

class ScanGradient {
 public:
  explicit ScanGradient(GradientContext& context)
      : context_(context),
        layout_(ScanLayout::of(context.node())),
        body_owner_(context.node().bodies[0]),
        body_(*body_owner_) {}

  void run() {
    find_active_inputs();
    build_joint_graph();
    choose_kept_values();
    extend_forward_scan();
    add_backward_scan();
  }

 private:
  // Which inputs of the body need a cotangent: those asked for, and the carries they flow into.
  void find_active_inputs() {
    active_.assign(index(layout_.body_inputs()), false);
    trained_carry_.assign(index(layout_.carries), false);
    const int plain = layout_.carries + layout_.invariants + layout_.stacked_in;
    for (int i = 0; i < plain; ++i) active_[index(i)] = context_.needs(index(i));
    for (int list = 0; list < layout_.lists_in; ++list) {
      for (int64_t i = 0; i < layout_.length; ++i) {
        if (context_.needs(index(layout_.list_operand(list, i))))
          active_[index(plain + list)] = true;
      }
    }
    for (bool changed = true; changed;) {
      changed = false;
      const std::vector<bool> reached = values_reached();
      for (int i = 0; i < layout_.carries; ++i) {
        trained_carry_[index(i)] = reached[index(body_.outputs()[index(i)].value)];
        // Of one iteration, nothing flows from a carry's end to its beginning.
        if (trained_carry_[index(i)] && !active_[index(i)] && layout_.length > 1) {
          active_[index(i)] = changed = true;
        }
      }
    }
  }

  // The values of the body that depend on an active input.
  std::vector<bool> values_reached() const {
    std::vector<bool> reached(index(body_.value_count()), false);
    for (size_t i = 0; i < active_.size(); ++i) {
      if (active_[i]) reached[index(body_.inputs()[i].value)] = true;
    }
    for (const Node& node : body_.nodes()) {
      bool any = false;
      for (ValueId id : node.operands) any |= reached[index(id)];
      for (ValueId id : node.results) {
        if (any && is_float(body_.type(id).dtype)) reached[index(id)] = true;
      }
    }
    return reached;
  }

  // Copies the body into joint_, and differentiates it there. Cotangents of its outputs are further
  // inputs, made only for the outputs that have one.
  void build_joint_graph() {
    ValueMap known;
    for (const Input& input : body_.inputs()) {
      known.emplace(input.value, joint_.input(input.name, body_.type(input.value)));
    }
    std::vector<ValueId> all;
    for (const Node& node : body_.nodes())
      all.insert(all.end(), node.results.begin(), node.results.end());
    copy_values(body_, all, joint_, known);
    for (const auto& [in_body, in_joint] : known) body_value_.emplace(in_joint.id(), in_body);

    std::vector<Value> of, seeds;
    const auto seed = [&](int output, Role role, Value outer) {
      const Value v = known.at(body_.outputs()[index(output)].value);
      const Value cotangent = joint_.input("cotangent", v.type());
      of.push_back(v);
      seeds.push_back(cotangent);
      roles_.emplace(cotangent.id(), Source{role, output, outer});
    };
    for (int i = 0; i < layout_.carries; ++i) {
      const Value outer = context_.cotangent(index(i));
      if (active_[index(i)]) {
        seed(i, Role::kCotangentCarry, {});
      } else if (trained_carry_[index(i)] && outer.defined()) {
        seed(i, Role::kCotangentInvariant, outer);
      }
    }
    for (int i = 0; i < layout_.stacked_out; ++i) {
      const int output = layout_.carries + i;
      const Value outer = context_.cotangent(index(output));
      if (outer.defined()) seed(output, Role::kCotangentStacked, outer);
    }
    for (int list = 0; list < layout_.lists_out; ++list) {
      for (int64_t i = 0; i < layout_.length; ++i) {
        if (context_.cotangent(index(layout_.list_result(list, i))).defined()) {
          seed(layout_.carries + layout_.stacked_out + list, Role::kCotangentList, {});
          break;
        }
      }
    }
    std::vector<Value> wrt;
    for (size_t i = 0; i < active_.size(); ++i) {
      if (active_[i]) wrt.push_back(joint_.value(joint_.inputs()[i].value));
    }
    if (of.empty()) {
      for (Value v : wrt) gradients_.push_back(zeros_like(v));
    } else {
      gradients_ = vector_jacobian_product(of, seeds, wrt, context_.options());
    }
  }

  bool keeps(ValueId id) const {
    if (!body_value_.contains(id)) return false;  // of the backward pass
    const int node = joint_.defining_node(id);
    if (node < 0) return false;
    const Op* op = joint_.nodes()[index(node)].op;
    switch (context_.options().remat) {
      case Remat::kNone: return !is_view(op);
      case Remat::kMinimal: return op->expensive;
      case Remat::kFull: return false;
    }
    return false;
  }

  // Walks back from the gradients to the kept values and the inputs that the backward body reads.
  void choose_kept_values() {
    std::vector<ValueId> pending;
    for (Value v : gradients_) pending.push_back(v.id());
    std::set<ValueId> seen;
    while (!pending.empty()) {
      const ValueId id = pending.back();
      pending.pop_back();
      if (!seen.insert(id).second) continue;
      const int node = joint_.defining_node(id);
      if (node < 0 || keeps(id)) {
        read_.insert(id);
        continue;
      }
      const auto& operands = joint_.nodes()[index(node)].operands;
      pending.insert(pending.end(), operands.begin(), operands.end());
    }
    for (ValueId id : read_) {
      const int input = joint_.input_index(id);
      const bool carry = input >= 0 && input < layout_.carries;
      if (carry || input < 0) kept_.push_back(id);
    }
  }

  // Gives the forward scan a stacked result for each kept value.
  void extend_forward_scan() {
    if (kept_.empty()) return;
    auto body = std::make_shared<Graph>();
    ValueMap known;
    for (const Input& input : body_.inputs()) {
      known.emplace(input.value, body->input(input.name, body_.type(input.value)));
    }
    std::vector<ValueId> wanted;
    for (const Output& output : body_.outputs()) wanted.push_back(output.value);
    for (ValueId id : kept_) wanted.push_back(body_value_.at(id));
    const std::vector<Value> values = copy_values(body_, wanted, *body, known);
    const size_t before_lists = index(layout_.carries + layout_.stacked_out);
    const size_t own = body_.outputs().size();
    for (size_t i = 0; i < before_lists; ++i) body->output(body_.outputs()[i].name, values[i]);
    for (size_t i = own; i < values.size(); ++i) body->output("kept", values[i]);
    for (size_t i = before_lists; i < own; ++i) body->output(body_.outputs()[i].name, values[i]);

    Graph& graph = context_.graph();
    Node node = context_.node();
    std::vector<ValueId> stacks;
    for (ValueId id : kept_) {
      Type type = joint_.type(id);
      type.shape.insert(type.shape.begin(), layout_.length);
      stacks.push_back(graph.new_value(type));
      kept_stack_.emplace(id, graph.value(stacks.back()));
    }
    node.results.insert(node.results.begin() + static_cast<int64_t>(before_lists), stacks.begin(),
                        stacks.end());
    ScanLayout layout = layout_;
    layout.stacked_out += static_cast<int>(kept_.size());
    node.attributes = layout.attributes();
    node.bodies = {body};
    graph.replace_node(context_.node_index(), std::move(node));
  }

  void add_backward_scan() {
    ScanOperands operands;
    std::vector<ValueId> carry_ids, invariant_ids, stacked_ids, list_ids;  // in joint_
    const auto outer = [&](int i) { return context_.operand(index(i)); };

    // Carries: cotangents of the forward carries, then sums for the invariants.
    for (const auto& [id, source] : roles_) {
      if (source.role != Role::kCotangentCarry) continue;
      const Value final_cotangent = context_.cotangent(index(source.output));
      operands.carries.push_back(final_cotangent.defined() ? final_cotangent
                                                           : zeros_like(outer(source.output)));
      carry_ids.push_back(id);
    }
    const size_t forward_carries = carry_ids.size();
    size_t gradient = 0;
    std::vector<Value> of_carries, of_invariants, of_stacked, of_lists;
    std::vector<int> stacked_inputs, list_inputs, invariant_inputs;
    for (int i = 0; i < layout_.body_inputs(); ++i) {
      if (!active_[index(i)]) continue;
      const Value g = gradients_[gradient++];
      if (i < layout_.carries) {
        of_carries.push_back(g);
      } else if (i < layout_.carries + layout_.invariants) {
        of_invariants.push_back(g);
        invariant_inputs.push_back(i);
        operands.carries.push_back(splat(context_.graph(), 0, g.type()));
      } else if (i < layout_.carries + layout_.invariants + layout_.stacked_in) {
        of_stacked.push_back(g);
        stacked_inputs.push_back(i);
      } else {
        of_lists.push_back(g);
        list_inputs.push_back(i);
      }
    }

    // What the backward body reads of the forward one, by role.
    for (ValueId id : kept_) {
      operands.stacked.push_back(kept_stack_.at(id));
      stacked_ids.push_back(id);
    }
    for (ValueId id : read_) {
      const int input = joint_.input_index(id);
      if (input < layout_.carries || input >= layout_.body_inputs()) continue;
      if (input < layout_.carries + layout_.invariants) {
        operands.invariants.push_back(outer(input));
        invariant_ids.push_back(id);
      } else if (input < layout_.carries + layout_.invariants + layout_.stacked_in) {
        operands.stacked.push_back(outer(input));
        stacked_ids.push_back(id);
      } else {
        operands.lists.push_back(list_operands(input));
        list_ids.push_back(id);
      }
    }
    for (const auto& [id, source] : roles_) {
      if (!read_.contains(id)) continue;
      if (source.role == Role::kCotangentInvariant) {
        operands.invariants.push_back(source.outer);
        invariant_ids.push_back(id);
      } else if (source.role == Role::kCotangentStacked) {
        operands.stacked.push_back(source.outer);
        stacked_ids.push_back(id);
      } else if (source.role == Role::kCotangentList) {
        operands.lists.push_back(list_cotangents(source.output));
        list_ids.push_back(id);
      }
    }

    const auto body_function = [&](ScanBody& body) {
      ValueMap known;
      for (size_t i = 0; i < forward_carries; ++i) known.emplace(carry_ids[i], body.carry(i));
      for (size_t i = 0; i < invariant_ids.size(); ++i)
        known.emplace(invariant_ids[i], body.invariant(i));
      for (size_t i = 0; i < stacked_ids.size(); ++i)
        known.emplace(stacked_ids[i], body.stacked(i));
      for (size_t i = 0; i < list_ids.size(); ++i) known.emplace(list_ids[i], body.element(i));
      const auto inside = [&](const std::vector<Value>& values) {
        std::vector<ValueId> ids;
        for (Value v : values) ids.push_back(v.id());
        return copy_values(joint_, ids, body.graph(), known);
      };
      // One call, so that nodes keep the order of the joint graph.
      std::vector<Value> all = of_carries;
      all.insert(all.end(), of_invariants.begin(), of_invariants.end());
      all.insert(all.end(), of_stacked.begin(), of_stacked.end());
      all.insert(all.end(), of_lists.begin(), of_lists.end());
      const std::vector<Value> values = inside(all);
      size_t next = 0;
      for (size_t i = 0; i < of_carries.size(); ++i) body.carry_out(i, values[next++]);
      for (size_t i = 0; i < of_invariants.size(); ++i) {
        const size_t carry = forward_carries + i;
        body.carry_out(carry, body.carry(carry) + values[next++]);
      }
      for (size_t i = 0; i < of_stacked.size(); ++i) body.stacked_out(values[next++]);
      for (size_t i = 0; i < of_lists.size(); ++i) body.list_out(values[next++]);
    };
    const ScanResults results =
        scan(context_.graph(), layout_.length, operands, body_function, !layout_.reverse);

    size_t next = 0;
    for (int i = 0; i < layout_.carries; ++i) {
      if (active_[index(i)]) context_.set(index(i), results.carries[next++]);
    }
    for (int input : invariant_inputs) context_.set(index(input), results.carries[next++]);
    for (size_t i = 0; i < stacked_inputs.size(); ++i) {
      context_.set(index(stacked_inputs[i]), results.stacked[i]);
    }
    for (size_t list = 0; list < list_inputs.size(); ++list) {
      const int number = list_number(list_inputs[list]);
      for (int64_t i = 0; i < layout_.length; ++i) {
        context_.set(index(layout_.list_operand(number, i)),
                     results.lists[list][static_cast<size_t>(i)]);
      }
    }
  }

  int list_number(int body_input) const {
    return body_input - layout_.carries - layout_.invariants - layout_.stacked_in;
  }

  std::vector<Value> list_operands(int body_input) const {
    std::vector<Value> values;
    for (int64_t i = 0; i < layout_.length; ++i) {
      values.push_back(context_.operand(index(layout_.list_operand(list_number(body_input), i))));
    }
    return values;
  }

  std::vector<Value> list_cotangents(int body_output) const {
    const int list = body_output - layout_.carries - layout_.stacked_out;
    std::vector<Value> values;
    for (int64_t i = 0; i < layout_.length; ++i) {
      const size_t result = index(layout_.list_result(list, i));
      const Value cotangent = context_.cotangent(result);
      values.push_back(
          cotangent.defined()
              ? cotangent
              : splat(context_.graph(), 0, body_.type(body_.outputs()[index(body_output)].value)));
    }
    return values;
  }

  enum class Role : uint8_t {
    kCotangentCarry,
    kCotangentInvariant,
    kCotangentStacked,
    kCotangentList
  };
  struct Source {
    Role role;
    int output;   // of the body
    Value outer;  // the cotangent outside, where it is one value
  };

  GradientContext& context_;
  const ScanLayout layout_;
  const std::shared_ptr<const Graph> body_owner_;  // outlives the node's change of body
  const Graph& body_;
  std::vector<bool> active_;         // by input of the body: its cotangent is computed
  std::vector<bool> trained_carry_;  // by carry: its end depends on an active input
  Graph joint_;
  std::unordered_map<ValueId, ValueId> body_value_;  // forward values of joint_ -> body_
  std::map<ValueId, Source> roles_;                  // cotangent inputs of joint_
  std::vector<Value> gradients_;                     // in joint_, one an active input
  std::set<ValueId> read_;  // values of joint_ at which the backward body begins
  std::vector<ValueId> kept_;
  std::unordered_map<ValueId, Value> kept_stack_;
};

}  // namespace

void scan_gradient(GradientContext& context) { ScanGradient(context).run(); }

}  // namespace graft
