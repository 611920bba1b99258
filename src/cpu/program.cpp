#include "cpu/program.h"

#include <algorithm>

#include "cpu/lower.h"
#include "cpu/plan.h"
#include "cpu/schedule.h"

namespace graft::cpu {
namespace {

class Emitter {
 public:
  Emitter(const Plan& plan, Program& program)
      : plan_(plan), program_(program), slot_of_place_(plan.places.size(), -1) {}

  void run() {
    program_.blocks.resize(plan_.frames.size());
    for (size_t f = 0; f < plan_.frames.size(); ++f) emit_frame(f);
    for (VariableId v : plan_.outputs) program_.outputs.push_back(slot(v));
    const Frame& top = plan_.frames[0];
    for (const Input& input : top.graph->inputs()) {
      program_.inputs.push_back(slot(top.variable_of[static_cast<size_t>(input.value)]));
    }
  }

 private:
  SlotId slot(VariableId v) {
    const auto p = static_cast<size_t>(plan_.place(v));
    if (slot_of_place_[p] < 0) {
      const Place& place = plan_.places[p];
      Slot made;
      if (place.fixed < 0) {
        made.offset = place.offset;
      } else {
        made = fixed_slot(plan_.fixed[static_cast<size_t>(place.fixed)]);
      }
      program_.slots.push_back(std::move(made));
      slot_of_place_[p] = static_cast<SlotId>(program_.slots.size() - 1);
      if (place.fixed >= 0) register_loop_slot(place.fixed, slot_of_place_[p]);
    }
    return slot_of_place_[p];
  }

  Slot fixed_slot(const FixedStorage& storage) {
    Slot made;
    made.index = storage.index;
    made.offset = storage.stride;
    for (VariableId base : storage.bases) made.bases.push_back(slot(base));
    switch (storage.kind) {
      case FixedStorage::Kind::kInput: made.kind = Slot::Kind::kInput; break;
      case FixedStorage::Kind::kLiteral: made.kind = Slot::Kind::kLiteral; break;
      case FixedStorage::Kind::kSlice: made.kind = Slot::Kind::kSlice; break;
      case FixedStorage::Kind::kElement: made.kind = Slot::Kind::kElement; break;
    }
    return made;
  }

  void register_loop_slot(int fixed, SlotId id) {
    const FixedStorage& storage = plan_.fixed[static_cast<size_t>(fixed)];
    if (storage.bases.empty()) return;
    program_.blocks[static_cast<size_t>(storage.frame)].loop_slots.push_back(id);
  }

  int timer(std::string_view op) {
    const auto at = std::find(program_.timers.begin(), program_.timers.end(), op);
    if (at != program_.timers.end()) return static_cast<int>(at - program_.timers.begin());
    program_.timers.emplace_back(op);
    return static_cast<int>(program_.timers.size() - 1);
  }

  void emit_copy(std::vector<Step>& steps, VariableId from, VariableId to) {
    const size_t bytes = plan_.variable(to).bytes;
    if (plan_.same_place(from, to) || bytes == 0) return;
    Step step;
    step.kind = Step::Kind::kCopy;
    step.slots = {slot(from), slot(to)};
    step.operands = 1;
    step.bytes = bytes;
    step.timer = timer("copy");
    steps.push_back(std::move(step));
  }

  void emit_frame(size_t index) {
    const Frame& frame = plan_.frames[index];
    std::vector<Step> steps;
    const auto copy_slots = [&](SlotOutput::Action action) {
      for (const SlotOutput& output : frame.slots) {
        if (output.action == action) emit_copy(steps, output.value, output.slot);
      }
    };
    copy_slots(SlotOutput::Action::kCopyAtStart);
    for (size_t n = 0; n < frame.nodes.size(); ++n) {
      const Node& node = frame.graph->nodes()[n];
      const NodePlan& plan = frame.nodes[n];
      if (plan.kernel != nullptr) {
        emit_kernel(steps, frame, node, plan);
      } else if (!plan.bodies.empty()) {
        emit_control(steps, node, plan);
      }
    }
    copy_slots(SlotOutput::Action::kCopyAtEnd);
    for (const Loopback& l : frame.loopbacks) {
      if (l.temporary >= 0) emit_copy(steps, l.out, l.temporary);
    }
    for (const Loopback& l : frame.loopbacks) {
      if (l.out != l.in) emit_copy(steps, l.temporary >= 0 ? l.temporary : l.out, l.final);
    }
    program_.blocks[index].steps = std::move(steps);
  }

  void emit_kernel(std::vector<Step>& steps, const Frame& frame, const Node& node,
                   const NodePlan& plan) {
    Step step;
    step.node = &node;
    step.kernel = plan.kernel;
    step.operands = plan.in.size();
    step.timer = timer(node.op->name);
    for (VariableId v : plan.in) step.slots.push_back(slot(v));
    for (VariableId v : plan.out) step.slots.push_back(slot(v));
    for (ValueId id : plan.operands) step.types.push_back(frame.graph->type(id));
    for (ValueId id : node.results) step.types.push_back(frame.graph->type(id));
    step.buffers.resize(step.slots.size());
    if (plan.scratch >= 0) {
      step.scratch = slot(plan.scratch);
      step.bytes = plan_.variable(plan.scratch).bytes;
    }
    steps.push_back(std::move(step));
    // The buffers point to the types, whose storage does not move with the step.
    Step& stored = steps.back();
    for (size_t i = 0; i < stored.buffers.size(); ++i) stored.buffers[i].type = &stored.types[i];
  }

  void emit_control(std::vector<Step>& steps, const Node& node, const NodePlan& plan) {
    Step step;
    step.node = &node;
    step.blocks = plan.bodies;
    if (node.op == &kScan) {
      step.kind = Step::Kind::kScan;
      const Frame& body = plan_.frames[static_cast<size_t>(plan.bodies[0])];
      for (const Loopback& l : body.loopbacks) emit_copy(steps, l.init, l.in);
      step.length = body.layout.length;
      step.reverse = body.layout.reverse;
    } else {
      step.kind = Step::Kind::kCase;
      step.slots = {slot(plan.in[0])};
    }
    steps.push_back(std::move(step));
  }

  const Plan& plan_;
  Program& program_;
  std::vector<SlotId> slot_of_place_;
};

bool is_looped(const Slot& slot) {
  return slot.kind == Slot::Kind::kSlice || slot.kind == Slot::Kind::kElement;
}

std::string describe(const Program& program, const Slot& slot) {
  std::string bases;
  const auto base = [&](SlotId id) {
    const Slot& of = program.slots[static_cast<size_t>(id)];
    return is_looped(of) ? fmt::format("${}", id) : describe(program, of);
  };
  switch (slot.kind) {
    case Slot::Kind::kArena: return fmt::format("@{}", slot.offset);
    case Slot::Kind::kInput: return fmt::format("input {}", slot.index);
    case Slot::Kind::kLiteral: return fmt::format("literal {}", slot.index);
    case Slot::Kind::kSlice: return fmt::format("{} + i * {}", base(slot.bases[0]), slot.offset);
    case Slot::Kind::kElement:
      for (SlotId id : slot.bases)
        bases += fmt::format("{}{}", bases.empty() ? "" : ", ", base(id));
      return fmt::format("[{}][i]", bases);
  }
  return {};
}

void print_block(const Program& program, int index, const std::string& indent, std::string& text) {
  const auto name = [&](SlotId id) {
    const Slot& slot = program.slots[static_cast<size_t>(id)];
    return is_looped(slot) ? fmt::format("${}", id) : describe(program, slot);
  };
  const Block& block = program.blocks[static_cast<size_t>(index)];
  for (SlotId id : block.loop_slots) {
    text += fmt::format("{}${} = {}\n", indent, id,
                        describe(program, program.slots[static_cast<size_t>(id)]));
  }
  for (const Step& step : block.steps) {
    std::string in, out;
    for (size_t i = 0; i < step.slots.size(); ++i) {
      std::string& list = i < step.operands ? in : out;
      list += fmt::format("{}{}", list.empty() ? "" : ", ", name(step.slots[i]));
      if (step.kind == Step::Kind::kKernel) list += fmt::format(" {}", to_string(step.types[i]));
    }
    switch (step.kind) {
      case Step::Kind::kKernel:
        text += fmt::format("{}{} <- {}({})", indent, out, step.node->op->name, in);
        if (step.scratch >= 0) {
          text += fmt::format(" scratch {} {} bytes", name(step.scratch), step.bytes);
        }
        break;
      case Step::Kind::kCopy:
        text += fmt::format("{}{} <- copy({}) {} bytes", indent, out, in, step.bytes);
        break;
      case Step::Kind::kScan:
        text += fmt::format("{}scan i = 0 .. {}{}", indent, step.length - 1,
                            step.reverse ? ", backwards" : "");
        break;
      case Step::Kind::kCase: text += fmt::format("{}case {}", indent, out); break;
    }
    if (step.node != nullptr && !step.node->scope.empty())
      text += fmt::format("  // {}", step.node->scope);
    text += '\n';
    for (int inner : step.blocks) {
      text += indent + "{\n";
      print_block(program, inner, indent + "  ", text);
      text += indent + "}\n";
    }
  }
}

}  // namespace

Program make_program(const Graph& graph, int threads) {
  Program program;
  program.graph = schedule(*lower(graph));
  Plan plan = make_plan(*program.graph, threads);
  Emitter(plan, program).run();
  program.literals = std::move(plan.literals);
  program.memory = std::move(plan.memory);
  return program;
}

std::string to_string(const Program& program) {
  std::string text = fmt::format("arena of {} bytes\n", program.memory.arena_bytes);
  print_block(program, 0, "", text);
  return text;
}

}  // namespace graft::cpu
