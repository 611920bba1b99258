// The first part of the plan: numbers the moments of a graph, makes the variables and finds their
// lives.

#include <algorithm>

#include "cpu/lower.h"
#include "cpu/plan.h"
#include "ir/primitives.h"

namespace graft::cpu {
namespace {

using Origin = Variable::Origin;

class Timeline {
 public:
  Timeline(Plan& plan, int threads) : plan_(plan), threads_(threads) {}

  void run(const Graph& graph) {
    Frame frame = open(graph, -1);
    for (size_t i = 0; i < graph.inputs().size(); ++i) {
      const ValueId id = graph.inputs()[i].value;
      frame.variable_of[static_cast<size_t>(id)] =
          external(0, FixedStorage::Kind::kInput, static_cast<int>(i), graph.type(id).bytes());
    }
    walk(frame, 0);
    close_graph(frame);
    plan_.frames[0] = std::move(frame);
    summarise();
  }

 private:
  // --- variables

  VariableId make(Origin origin, int frame, size_t bytes, int begin) {
    Variable variable;
    variable.origin = origin;
    variable.frame = frame;
    variable.begin = variable.end = begin;
    variable.bytes = bytes;
    plan_.variables.push_back(variable);
    return static_cast<VariableId>(plan_.variables.size() - 1);
  }

  VariableId make_fixed(Origin origin, int frame, size_t bytes, int begin, FixedStorage storage) {
    const VariableId v = make(origin, frame, bytes, begin);
    plan_.fixed.push_back(std::move(storage));
    at(v).fixed = static_cast<int>(plan_.fixed.size() - 1);
    return v;
  }

  VariableId external(int frame, FixedStorage::Kind kind, int index, size_t bytes) {
    const Origin origin = kind == FixedStorage::Kind::kInput ? Origin::kInput : Origin::kLiteral;
    FixedStorage storage;
    storage.kind = kind;
    storage.index = index;
    return make_fixed(origin, frame, bytes, now_, std::move(storage));
  }

  Variable& at(VariableId v) { return plan_.variables[static_cast<size_t>(v)]; }
  void use(VariableId v, int moment) { at(v).end = std::max(at(v).end, moment); }

  // --- frames

  Frame open(const Graph& graph, int parent) {
    plan_.frames.emplace_back();
    Frame frame;
    frame.graph = &graph;
    frame.parent = parent;
    frame.variable_of.assign(static_cast<size_t>(graph.value_count()), -1);
    frame.nodes.resize(graph.nodes().size());
    frame.begin = now_++;
    frame.start_copies = now_++;
    return frame;
  }

  static VariableId variable(const Frame& frame, ValueId id) {
    return frame.variable_of[static_cast<size_t>(id)];
  }

  // Nodes whose results something reads, now that kernels look through the broadcasts of scalars.
  static std::vector<bool> needed_nodes(const Graph& graph) {
    std::vector<bool> wanted(static_cast<size_t>(graph.value_count()));
    std::vector<bool> needed(graph.nodes().size());
    for (const Output& output : graph.outputs()) wanted[static_cast<size_t>(output.value)] = true;
    for (size_t n = graph.nodes().size(); n-- > 0;) {
      const Node& node = graph.nodes()[n];
      needed[n] = std::any_of(node.results.begin(), node.results.end(),
                              [&](ValueId id) { return wanted[static_cast<size_t>(id)]; });
      if (!needed[n]) continue;
      for (size_t i = 0; i < node.operands.size(); ++i) {
        const ValueId id = is_view(graph, node) ? node.operands[i] : kernel_operand(graph, node, i);
        wanted[static_cast<size_t>(id)] = true;
      }
    }
    return needed;
  }

  void walk(Frame& frame, int index) {
    const Graph& graph = *frame.graph;
    const std::vector<bool> needed = needed_nodes(graph);
    for (size_t n = 0; n < graph.nodes().size(); ++n) {
      if (needed[n]) visit(frame, index, graph.nodes()[n], frame.nodes[n]);
    }
    frame.end_copies = now_++;
    frame.final_copies = now_++;
    frame.end = now_++;
  }

  // --- nodes

  void visit(Frame& frame, int index, const Node& node, NodePlan& plan) {
    const Graph& graph = *frame.graph;
    if (is_view(graph, node)) {
      frame.variable_of[static_cast<size_t>(node.results[0])] = variable(frame, node.operands[0]);
    } else if (node.op == &kConstant) {
      const Tensor value = node.attributes.tensor("value").aligned();
      frame.variable_of[static_cast<size_t>(node.results[0])] =
          external(index, FixedStorage::Kind::kLiteral, static_cast<int>(plan_.literals.size()),
                   value.size_bytes());
      plan_.memory.constant_bytes += value.size_bytes();
      plan_.literals.push_back(value);
    } else {
      for (size_t i = 0; i < node.operands.size(); ++i) {
        plan.operands.push_back(kernel_operand(graph, node, i));
        plan.in.push_back(variable(frame, plan.operands.back()));
      }
      if (node.op == &kScan) {
        visit_scan(frame, index, node, plan);
      } else if (node.op == &kCase) {
        visit_case(frame, index, node, plan);
      } else {
        visit_kernel(frame, index, node, plan);
      }
      for (size_t i = 0; i < node.results.size(); ++i) {
        frame.variable_of[static_cast<size_t>(node.results[i])] = plan.out[i];
        at(plan.out[i]).node = &node;
        at(plan.out[i]).value = node.results[i];
      }
    }
  }

  void visit_kernel(const Frame& frame, int index, const Node& node, NodePlan& plan) {
    const Graph& graph = *frame.graph;
    std::vector<Type> in, out;
    for (ValueId id : node.operands) in.push_back(graph.type(id));
    for (ValueId id : node.results) out.push_back(graph.type(id));
    plan.kernel = find_kernel(node, in, out);
    GRAFT_CHECK(plan.kernel != nullptr, "{} was not lowered", node.op->name);
    const int moment = now_++;
    for (VariableId v : plan.in) use(v, moment);
    for (const Type& type : out)
      plan.out.push_back(make(Origin::kNode, index, type.bytes(), moment));
    if (plan.kernel->scratch_bytes != nullptr) {
      const size_t bytes = plan.kernel->scratch_bytes(node, in, out, threads_);
      plan_.memory.scratch_bytes = std::max(plan_.memory.scratch_bytes, bytes);
      if (bytes > 0) plan.scratch = make(Origin::kScratch, index, bytes, moment);
    }
    if (plan.kernel->in_place) add_transfers(in, out, plan);
  }

  // An operand may be overwritten where it stands only at positions that the kernel allows it for.
  void add_transfers(const std::vector<Type>& in, const std::vector<Type>& out,
                     const NodePlan& plan) {
    const auto allowed = [&](size_t i) {
      return i < 32 && (plan.kernel->in_place_operands >> i & 1U) != 0;
    };
    for (size_t i = 0; i < in.size(); ++i) {
      bool everywhere = true;
      for (size_t j = 0; j < in.size(); ++j) everywhere &= plan.in[j] != plan.in[i] || allowed(j);
      if (!everywhere) continue;
      for (size_t r = 0; r < out.size(); ++r) {
        if (dtype_bits(in[i].dtype) == dtype_bits(out[r].dtype) &&
            at(plan.in[i]).bytes == out[r].bytes() && out[r].bytes() > 0) {
          plan_.transfers.emplace(plan.in[i], plan.out[r]);
        }
      }
    }
  }

  // The inputs of a scan's body, in the order of scan.h.
  void bind_scan_inputs(Frame& body, int index, const ScanLayout& s, const NodePlan& plan) {
    const Graph& graph = *body.graph;
    for (int i = 0; i < s.body_inputs(); ++i) {
      const ValueId id = graph.inputs()[static_cast<size_t>(i)].value;
      const size_t bytes = graph.type(id).bytes();
      VariableId& v = body.variable_of[static_cast<size_t>(id)];
      const int stacked = i - s.carries - s.invariants, list = stacked - s.stacked_in;
      if (i < s.carries) {
        v = make(Origin::kCarry, index, bytes, body.begin);
        at(v).value = id;
        use(plan.in[static_cast<size_t>(i)], body.begin);
        plan_.transfers.emplace(plan.in[static_cast<size_t>(i)], v);
      } else if (stacked < 0) {
        v = plan.in[static_cast<size_t>(i)];
      } else if (list < 0) {
        v = slot(index, bytes, body.begin, {plan.in[static_cast<size_t>(i)]}, false);
      } else {
        std::vector<VariableId> elements;
        for (int64_t e = 0; e < s.length; ++e) {
          elements.push_back(plan.in[static_cast<size_t>(s.list_operand(list, e))]);
        }
        v = slot(index, bytes, body.begin, std::move(elements), true);
      }
    }
  }

  VariableId slot(int frame, size_t bytes, int begin, std::vector<VariableId> bases, bool list) {
    FixedStorage storage;
    storage.kind = list ? FixedStorage::Kind::kElement : FixedStorage::Kind::kSlice;
    storage.bases = std::move(bases);
    storage.stride = bytes;
    storage.frame = frame;
    return make_fixed(list ? Origin::kElement : Origin::kSlice, frame, bytes, begin,
                      std::move(storage));
  }

  void visit_scan(Frame& frame, int index, const Node& node, NodePlan& plan) {
    const ScanLayout s = ScanLayout::of(node);
    const int body_index = static_cast<int>(plan_.frames.size());
    Frame body = open(*node.bodies[0], index);
    body.layout = s;
    plan.bodies = {body_index};
    bind_scan_inputs(body, body_index, s, plan);
    // The slots of stacked and list results are written while the scan runs.
    plan.out.assign(static_cast<size_t>(s.result_count()), -1);
    for (size_t r = static_cast<size_t>(s.carries); r < plan.out.size(); ++r) {
      plan.out[r] =
          make(Origin::kNode, index, frame.graph->type(node.results[r]).bytes(), body.begin);
    }
    walk(body, body_index);
    for (int k = 0; k < s.carries; ++k) {
      const auto i = static_cast<size_t>(k);
      const VariableId in = variable(body, body.graph->inputs()[i].value);
      const VariableId out = variable(body, body.graph->outputs()[i].value);
      const VariableId final = make(Origin::kNode, index, at(in).bytes, body.final_copies);
      body.loopbacks.push_back(loop(body, body_index, in, out, final));
      body.loopbacks.back().init = plan.in[i];
      plan.out[i] = final;
    }
    add_slot_outputs(body, body_index, s, plan);
    // What an iteration reads from outside is there for the next.
    for (size_t i = static_cast<size_t>(s.carries); i < plan.in.size(); ++i) {
      use(plan.in[i], body.end);
      const bool walked = i >= static_cast<size_t>(s.carries + s.invariants);
      if (walked && is_kept_by_scan(plan.in[i])) kept_.insert(plan.in[i]);
    }
    for (VariableId v : plan.out) use(v, body.end);
    plan_.frames[static_cast<size_t>(body_index)] = std::move(body);
  }

  // How `out` becomes what is next found in `in`, and after the last time `final`.
  Loopback loop(const Frame& body, int index, VariableId in, VariableId out, VariableId final) {
    Loopback loopback{.in = in, .out = out, .final = final};
    const Variable& value = at(out);
    const bool overwritten =
        out != in && value.frame == index &&
        (value.origin == Origin::kCarry || (index == 0 && value.origin == Origin::kInput));
    if (overwritten) {
      loopback.temporary = make(Origin::kCopy, index, value.bytes, body.end_copies);
      use(out, body.end_copies);
      use(loopback.temporary, body.final_copies);
    } else {
      use(out, body.final_copies);
      if (is_made_in(out, index)) plan_.transfers.emplace(out, final);
    }
    return loopback;
  }

  bool is_made_in(VariableId v, int frame) {
    return at(v).frame == frame && at(v).origin == Origin::kNode;
  }

  void add_slot_outputs(Frame& body, int index, const ScanLayout& s, const NodePlan& plan) {
    for (int i = s.carries; i < s.body_outputs(); ++i) {
      const int list = i - s.carries - s.stacked_out;
      std::vector<VariableId> bases;
      if (list < 0) {
        bases = {plan.out[static_cast<size_t>(i)]};
      } else {
        for (int64_t e = 0; e < s.length; ++e) {
          bases.push_back(plan.out[static_cast<size_t>(s.list_result(list, e))]);
        }
      }
      SlotOutput output;
      output.value = variable(body, body.graph->outputs()[static_cast<size_t>(i)].value);
      const size_t bytes = at(output.value).bytes;
      // A value that has another home already (a carry's, an earlier slot) is copied.
      const bool at_home =
          std::any_of(body.loopbacks.begin(), body.loopbacks.end(),
                      [&](const Loopback& l) { return l.out == output.value; }) ||
          std::any_of(body.slots.begin(), body.slots.end(),
                      [&](const SlotOutput& o) { return o.value == output.value; });
      int begin = body.end;
      if (!is_made_in(output.value, index)) {
        output.action = SlotOutput::Action::kCopyAtStart;
        begin = body.start_copies;
      } else if (at_home) {
        output.action = SlotOutput::Action::kCopyAtEnd;
        begin = body.end_copies;
      }
      output.slot = slot(index, bytes, begin, std::move(bases), list >= 0);
      use(output.value, begin == body.end ? body.final_copies : begin);
      body.slots.push_back(output);
    }
  }

  // A stacked or list result of a scan.
  bool is_kept_by_scan(VariableId v) {
    const Variable& variable = at(v);
    if (variable.node == nullptr || variable.node->op != &kScan) return false;
    const auto& results = variable.node->results;
    const auto result = std::find(results.begin(), results.end(), variable.value) - results.begin();
    return result >= ScanLayout::of(*variable.node).carries;
  }

  void visit_case(Frame& frame, int index, const Node& node, NodePlan& plan) {
    use(plan.in[0], now_);
    for (ValueId id : node.results) {
      plan.out.push_back(make(Origin::kNode, index, frame.graph->type(id).bytes(), now_));
    }
    for (const auto& branch : node.bodies) {
      const int body_index = static_cast<int>(plan_.frames.size());
      Frame body = open(*branch, index);
      plan.bodies.push_back(body_index);
      for (size_t i = 0; i < branch->inputs().size(); ++i) {
        body.variable_of[static_cast<size_t>(branch->inputs()[i].value)] = plan.in[i + 1];
      }
      walk(body, body_index);
      for (size_t i = 0; i < branch->outputs().size(); ++i) {
        const VariableId out = variable(body, branch->outputs()[i].value);
        const VariableId final = make(Origin::kFinal, body_index, at(out).bytes, body.final_copies);
        body.loopbacks.push_back(loop(body, body_index, -1, out, final));
        use(final, body.end);
      }
      plan_.frames[static_cast<size_t>(body_index)] = std::move(body);
    }
    const int end = now_++;
    for (VariableId v : plan.in) use(v, end);
    for (VariableId v : plan.out) at(v).begin = at(v).end = end;
  }

  // Donated inputs loop back; other outputs are read after the run.
  void close_graph(Frame& frame) {
    const Graph& graph = *frame.graph;
    plan_.outputs.resize(graph.outputs().size());
    for (size_t i = 0; i < graph.outputs().size(); ++i) {
      const Output& output = graph.outputs()[i];
      const VariableId out = variable(frame, output.value);
      if (output.donated_input >= 0) {
        const auto replaced = static_cast<size_t>(output.donated_input);
        const VariableId in = variable(frame, graph.inputs()[replaced].value);
        const VariableId final = make(Origin::kFinal, 0, at(in).bytes, frame.final_copies);
        frame.loopbacks.push_back(loop(frame, 0, in, out, final));
        use(final, frame.end);
        plan_.outputs[i] = final;
      } else if (at(out).origin == Origin::kInput) {
        // Its storage may be overwritten, by this run or by the owner.
        SlotOutput copied{.value = out,
                          .slot = make(Origin::kCopy, 0, at(out).bytes, frame.end_copies),
                          .action = SlotOutput::Action::kCopyAtEnd};
        use(out, frame.end_copies);
        use(copied.slot, frame.end);
        plan_.outputs[i] = copied.slot;
        frame.slots.push_back(copied);
      } else {
        use(out, frame.end);
        plan_.outputs[i] = out;
      }
    }
  }

  void summarise() {
    for (VariableId v : kept_) plan_.memory.activation_bytes += at(v).bytes;
  }

  Plan& plan_;
  int threads_;
  int now_ = 0;
  std::set<VariableId> kept_;
};

}  // namespace

Plan plan_lifetimes(const Graph& graph, int threads) {
  Plan plan;
  Timeline(plan, threads).run(graph);
  return plan;
}

}  // namespace graft::cpu
