#pragma once
// What an Executable runs: steps over slots.
//
// A slot is an address. Most are fixed for a run; those of a scan's body that depend on the
// iteration are set anew when it begins, so that a kernel call is the same few loads at any depth
// of nesting.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu/executable.h"
#include "cpu/kernel.h"

namespace graft::cpu {

using SlotId = int32_t;

struct Slot {
  enum class Kind : uint8_t {
    kArena,    // offset bytes into the arena
    kInput,    // what is bound to input `index`
    kLiteral,  // literal `index`
    kSlice,    // `offset` bytes times the iteration beyond the first base
    kElement,  // the base of the iteration's number
  };
  Kind kind = Kind::kArena;
  size_t offset = 0;
  int index = 0;
  std::vector<SlotId> bases;
};

struct Step {
  enum class Kind : uint8_t { kKernel, kCopy, kScan, kCase };
  Kind kind = Kind::kKernel;
  const Node* node = nullptr;
  const Kernel* kernel = nullptr;
  std::vector<SlotId> slots;    // operands, then results; kCopy: from, to; kCase: the index
  size_t operands = 0;          // of the slots
  std::vector<Type> types;      // of kernel slots
  std::vector<Buffer> buffers;  // filled when the kernel is called
  SlotId scratch = -1;
  size_t bytes = 0;         // of scratch, or of a copy
  std::vector<int> blocks;  // kScan: its body; kCase: its branches
  int64_t length = 0;       // kScan
  bool reverse = false;
  int timer = -1;  // index into Program::timers, where its time is added
};

struct Block {
  std::vector<SlotId> loop_slots;  // set at the beginning of each iteration
  std::vector<Step> steps;
};

struct Program {
  std::unique_ptr<Graph> graph;  // what nodes and types point into
  std::vector<Slot> slots;
  std::vector<Block> blocks;  // 0: the whole graph
  std::vector<Tensor> literals;
  std::vector<SlotId> inputs;  // by input; -1 where nothing reads it
  std::vector<SlotId> outputs;
  std::vector<std::string> timers;  // operations
  MemoryPlan memory;
};

// Lowers, plans and lists the steps of a graph that has been simplified.
Program make_program(const Graph& graph, int threads);

std::string to_string(const Program& program);

}  // namespace graft::cpu
