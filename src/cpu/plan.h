#pragma once
// The static memory plan: where every value of a graph with nested scans lives while it runs.
//
// Time is flat. The nodes of the graph are numbered in order, those of a body once, between the
// beginning and the end of their scan; what a body reads from outside lives until that end. So
// liveness is one interval a variable, and bodies, whatever their depth, take part in one
// assignment of offsets.
//
// A variable is a stretch of storage that is written once in that time: the result of a node, a
// carry as an iteration finds it, a copy. Views (lower.h) are no variables of their own. Variables
// that may share one storage because their lives do not meet are joined into places:
//   - the new value of a carry with the old one, a donated input with its output: written in place;
//   - an element of a stacked or list result with the body's value for it: written straight to its
//   slot;
//   - the result of an elementwise kernel with an operand that it is the last to read.
// Joining is only ever an economy: where it is not legal the program copies at a moment planned for
// it.
//
//   const Plan plan = make_plan(graph, threads);   // graph: lowered, see lower.h
//   plan.places[plan.place(v)].offset              // bytes from the start of the arena

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cpu/executable.h"
#include "cpu/kernel.h"
#include "ir/scan.h"

namespace graft::cpu {

using VariableId = int32_t;

struct Variable {
  enum class Origin : uint8_t {
    kNode,     // a kernel, scan or case writes it
    kInput,    // of the whole graph
    kLiteral,  // a kConstant node
    kCarry,    // what an iteration finds in a carry
    kSlice,    // an iteration's slice of a stacked operand
    kElement,  // an iteration's element of a list operand
    kFinal,    // a carry, donated input or case result once its last copy is made
    kCopy,     // storage for a copy
    kScratch,  // of a kernel
  };
  Origin origin = Origin::kNode;
  int frame = 0;           // the body that it belongs to
  int begin = 0, end = 0;  // first and last moment of its life, both included
  size_t bytes = 0;
  int place = -1;
  const Node* node = nullptr;  // that writes it, if any
  ValueId value = -1;          // of the frame's graph, for reports
  int fixed = -1;              // index into Plan::fixed, or -1: may lie in the arena
};

// Storage at an address that is not the arena's: of an input, or of a slot that depends on an
// iteration.
struct FixedStorage {
  enum class Kind : uint8_t { kInput, kLiteral, kSlice, kElement };
  Kind kind = Kind::kInput;
  int index = 0;                  // of the input or literal
  std::vector<VariableId> bases;  // the stack, or one variable an iteration
  size_t stride = 0;              // bytes from one slice to the next
  int frame = 0;                  // whose iterations it depends on
};

struct Place {
  std::vector<VariableId> members;
  int fixed = -1;  // index into Plan::fixed; -1: in the arena
  bool writable = true;
  size_t bytes = 0;
  size_t offset = 0;  // in the arena
};

// One value that goes around: a carry of a scan, a donated input of the graph, or a result of a
// case.
struct Loopback {
  VariableId in = -1;     // as found at the beginning (case: none)
  VariableId out = -1;    // what is to become of it: the variable of the body's output
  VariableId final = -1;  // after the last copy
  VariableId temporary =
      -1;                // through which `out` is copied where it is itself a carry of the body
  VariableId init = -1;  // scan: the operand
};

// An output of a body that has a slot of its own in each iteration.
struct SlotOutput {
  enum class Action : uint8_t { kDirect, kCopyAtStart, kCopyAtEnd };
  VariableId value = -1;
  VariableId slot = -1;  // a variable that stands for the slot
  Action action = Action::kDirect;
};

struct NodePlan {
  const Kernel* kernel = nullptr;  // null: a view, literal or unused node, or a scan or case
  std::vector<VariableId> in, out;
  std::vector<ValueId> operands;  // values read, after scalars are looked through
  VariableId scratch = -1;
  std::vector<int> bodies;  // frames
};

// A body (frame 0: the whole graph) as planned.
struct Frame {
  const Graph* graph = nullptr;
  int parent = -1;
  int begin = 0, start_copies = 0, end_copies = 0, final_copies = 0, end = 0;  // moments
  std::vector<VariableId> variable_of;                                         // by value
  std::vector<NodePlan> nodes;
  std::vector<Loopback> loopbacks;
  std::vector<SlotOutput> slots;
  ScanLayout layout;  // of the scan whose body this is
};

struct Plan {
  std::vector<Variable> variables;
  std::vector<FixedStorage> fixed;
  std::vector<Place> places;
  std::vector<Frame> frames;
  std::vector<Tensor> literals;
  // Pairs (a, b) that may meet at the one moment that ends a and begins b: b is written over a in
  // place.
  std::set<std::pair<VariableId, VariableId>> transfers;
  std::vector<VariableId> outputs;  // of the whole graph, where to read them
  MemoryPlan memory;

  const Variable& variable(VariableId v) const { return variables[static_cast<size_t>(v)]; }
  int place(VariableId v) const { return variable(v).place; }
  bool same_place(VariableId a, VariableId b) const { return place(a) == place(b); }
};

Plan make_plan(const Graph& graph, int threads);

// The parts of make_plan, in order.
Plan plan_lifetimes(const Graph& graph, int threads);  // timeline.cpp: frames, variables, moments
void join_places(Plan& plan);                          // join.cpp: places
void assign_offsets(Plan& plan);                       // offsets.cpp: the arena

}  // namespace graft::cpu
