// The second part of the plan: which variables share one storage.

#include <algorithm>

#include "cpu/plan.h"
#include "ir/primitives.h"

namespace graft::cpu {
namespace {

using Origin = Variable::Origin;

class Joiner {
 public:
  explicit Joiner(Plan& plan) : plan_(plan) {}

  void run() {
    for (size_t v = 0; v < plan_.variables.size(); ++v) {
      Variable& variable = plan_.variables[v];
      variable.place = static_cast<int>(plan_.places.size());
      Place place;
      place.members = {static_cast<VariableId>(v)};
      place.fixed = variable.fixed;
      place.writable = variable.fixed < 0;
      place.bytes = variable.bytes;
      plan_.places.push_back(std::move(place));
    }
    join_what_must();
    join_slots();
    for (size_t f = 0; f < plan_.frames.size(); ++f) join_threaded(plan_.frames[f]);
    join_loopbacks();
    join_in_place();
  }

 private:
  // --- legality

  bool meet(VariableId a, VariableId b) const {
    const Variable &x = plan_.variable(a), &y = plan_.variable(b);
    if (x.end < y.begin || y.end < x.begin) return false;
    if (x.end == y.begin && plan_.transfers.contains({a, b})) return false;
    if (y.end == x.begin && plan_.transfers.contains({b, a})) return false;
    return true;
  }

  // Whether two places hold values at the same time; `except` is a pair known to be harmless.
  bool conflict(int p, int q, std::pair<VariableId, VariableId> except = {-1, -1}) const {
    for (VariableId a : plan_.places[static_cast<size_t>(p)].members) {
      for (VariableId b : plan_.places[static_cast<size_t>(q)].members) {
        if (!meet(a, b) || (a == except.first && b == except.second)) continue;
        if (!threaded_.contains({a, b}) && !threaded_.contains({b, a})) return true;
      }
    }
    return false;
  }

  bool is_within(int frame, int outer) const {
    while (frame > outer) frame = plan_.frames[static_cast<size_t>(frame)].parent;
    return frame == outer;
  }

  // Storage that depends on the iterations of a frame serves variables of that frame alone.
  bool fits(const Place& fixed, const Place& other) const {
    const int frame = plan_.fixed[static_cast<size_t>(fixed.fixed)].frame;
    return std::all_of(other.members.begin(), other.members.end(),
                       [&](VariableId v) { return is_within(plan_.variable(v).frame, frame); });
  }

  bool joinable(int p, int q) const {
    const Place &a = plan_.places[static_cast<size_t>(p)],
                &b = plan_.places[static_cast<size_t>(q)];
    if (p == q || a.bytes != b.bytes) return false;
    if (a.fixed >= 0 && b.fixed >= 0) return false;
    if (a.fixed >= 0 && !(a.writable && fits(a, b))) return false;
    if (b.fixed >= 0 && !(b.writable && fits(b, a))) return false;
    return !conflict(p, q);
  }

  // --- joining

  void join(int p, int q) {
    if (p == q) return;
    Place &to = plan_.places[static_cast<size_t>(p)], &from = plan_.places[static_cast<size_t>(q)];
    for (VariableId v : from.members) plan_.variables[static_cast<size_t>(v)].place = p;
    to.members.insert(to.members.end(), from.members.begin(), from.members.end());
    if (to.fixed < 0) {
      to.fixed = from.fixed;
      to.writable = from.writable;
    }
    from.members.clear();
  }

  bool try_join(VariableId a, VariableId b) {
    const int p = plan_.place(a), q = plan_.place(b);
    if (!joinable(p, q)) return false;
    join(p, q);
    return true;
  }

  // A value that goes around ends where it began.
  void join_what_must() {
    for (Frame& frame : plan_.frames) {
      for (const Loopback& l : frame.loopbacks) {
        if (l.in >= 0) join(plan_.place(l.in), plan_.place(l.final));
      }
      for (const NodePlan& node : frame.nodes) {
        if (node.kernel != nullptr || node.bodies.empty()) continue;
        for (int body : node.bodies) {
          const Frame& branch = plan_.frames[static_cast<size_t>(body)];
          for (size_t i = 0; i < branch.loopbacks.size(); ++i) {
            const Loopback& l = branch.loopbacks[i];
            if (l.in < 0) join(plan_.place(node.out[i]), plan_.place(l.final));
          }
        }
      }
    }
  }

  void join_slots() {
    for (Frame& frame : plan_.frames) {
      for (const SlotOutput& output : frame.slots) {
        if (output.action != SlotOutput::Action::kDirect) continue;
        plan_.places[static_cast<size_t>(plan_.place(output.slot))].writable = true;
        join(plan_.place(output.slot), plan_.place(output.value));
      }
    }
  }

  // A stacked or list result may take over a stacked or list operand slot by slot (the caches of
  // layers, gradients added up over micro-batches): iteration i is the last to read operand i, and
  // writes result i.
  void join_threaded(const Frame& frame) {
    for (const NodePlan& node : frame.nodes) {
      if (node.kernel != nullptr || node.bodies.size() != 1) continue;
      const Frame& body = plan_.frames[static_cast<size_t>(node.bodies[0])];
      std::set<VariableId> taken;  // a slot is taken over once
      for (const SlotOutput& output : body.slots) {
        if (output.action != SlotOutput::Action::kDirect) continue;
        for (const Input& input : body.graph->inputs()) {
          const VariableId in = body.variable_of[static_cast<size_t>(input.value)];
          if (!taken.contains(in) && try_thread(node, body, in, output)) {
            taken.insert(in);
            break;
          }
        }
      }
    }
  }

  bool try_thread(const NodePlan& node, const Frame& body, VariableId in,
                  const SlotOutput& output) {
    const Variable &from = plan_.variable(in), &to = plan_.variable(output.slot);
    if (from.fixed < 0 || from.frame != to.frame || from.bytes != to.bytes) return false;
    const FixedStorage& operand = plan_.fixed[static_cast<size_t>(from.fixed)];
    const FixedStorage& result = plan_.fixed[static_cast<size_t>(to.fixed)];
    if (operand.kind != result.kind || conflict(plan_.place(in), plan_.place(output.slot))) {
      return false;
    }
    for (size_t i = 0; i < operand.bases.size(); ++i) {
      if (!can_take_over(node, body, operand.bases[i], result.bases[i])) return false;
    }
    for (size_t i = 0; i < operand.bases.size(); ++i) {
      threaded_.emplace(operand.bases[i], result.bases[i]);
      const int p = plan_.place(operand.bases[i]);
      plan_.places[static_cast<size_t>(p)].writable = true;
      join(p, plan_.place(result.bases[i]));
    }
    join(plan_.place(output.slot), plan_.place(in));
    return true;
  }

  bool can_take_over(const NodePlan& node, const Frame& body, VariableId operand,
                     VariableId result) const {
    if (std::count(node.in.begin(), node.in.end(), operand) != 1) return false;
    if (plan_.variable(operand).end != body.end) return false;
    const int p = plan_.place(operand), q = plan_.place(result);
    const Place &from = plan_.places[static_cast<size_t>(p)],
                &to = plan_.places[static_cast<size_t>(q)];
    if (p == q || to.fixed >= 0) return false;
    if (!from.writable && !is_donated(operand, result)) return false;
    if (from.fixed >= 0 && !fits(from, to)) return false;
    return !conflict(p, q, {operand, result});
  }

  bool is_donated(VariableId in, VariableId out) const {
    const auto& loopbacks = plan_.frames[0].loopbacks;
    return std::any_of(loopbacks.begin(), loopbacks.end(),
                       [&](const Loopback& l) { return l.in == in && l.out == out; });
  }

  void join_loopbacks() {
    for (size_t f = 0; f < plan_.frames.size(); ++f) {
      for (const Loopback& l : plan_.frames[f].loopbacks) {
        if (l.temporary >= 0 || l.out == l.in) continue;
        const Variable& out = plan_.variable(l.out);
        if (out.origin != Origin::kNode || out.frame != static_cast<int>(f)) continue;
        Place& home = plan_.places[static_cast<size_t>(plan_.place(l.final))];
        const bool read_only = home.fixed >= 0 && !home.writable;  // a donated input
        home.writable = true;
        if (!try_join(l.final, l.out) && read_only) {
          plan_.places[static_cast<size_t>(plan_.place(l.final))].writable = false;
        }
      }
    }
    for (const Frame& frame : plan_.frames) {
      for (const Loopback& l : frame.loopbacks) {
        if (l.init >= 0) try_join(l.in, l.init);
      }
    }
  }

  void join_in_place() {
    for (const Frame& frame : plan_.frames) {
      for (const NodePlan& node : frame.nodes) {
        if (node.kernel == nullptr || !node.kernel->in_place) continue;
        for (VariableId result : node.out) {
          for (VariableId operand : node.in) {
            if (plan_.transfers.contains({operand, result}) && try_join(operand, result)) break;
          }
        }
      }
    }
  }

  Plan& plan_;
  std::set<std::pair<VariableId, VariableId>> threaded_;
};

}  // namespace

void join_places(Plan& plan) { Joiner(plan).run(); }

}  // namespace graft::cpu
