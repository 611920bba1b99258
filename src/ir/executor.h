#pragma once
// What runs graphs: the native executor (cpu/native_executor.h), or XLA through a PJRT plugin
// (pjrt/executor.h). All that lies above knows this interface alone.
//
// An executor holds the variables of a run by name, and the programs that were compiled for it; a
// program whose output takes the place of a variable changes it for all of them. The native
// executor works on the tensors that it was given; others keep copies on their devices, and a
// variable is fetched when it is asked for.
//
//   executor.set_variable(spec, tensor);
//   std::unique_ptr<Program> step = executor.compile(graph);
//   step->bind("input_ids", ids);               // what is no variable is bound for each run
//   step->run();
//   double loss = step->output("loss").data<float>()[0];
//   Tensor trained = executor.variable("model.layers.0.self_attn.q_proj.lora_A");

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"
#include "ir/graph.h"
#include "ir/variable.h"

namespace graft {

// Bytes by part of one program: exact on the native executor, the compiler's own account on others
// (of one device, where there are several).
struct MemoryPlan {
  size_t arena_bytes = 0;       // everything live at once while the step runs, at its largest
  size_t activation_bytes = 0;  // of it: values kept by scans from forward to backward
  size_t scratch_bytes = 0;     // of it: the largest scratch of a kernel
  size_t constant_bytes = 0;    // literals of the graph, outside the arena
  size_t argument_bytes = 0;    // variables and data on a device; native: 0, they lie on the host
  struct Item {
    std::string name;  // "%12 linear layers/mlp", for reports of what takes the most
    size_t bytes;
  };
  std::vector<Item> largest;  // the ten largest values in the arena
};

struct CompileReport {
  double seconds = 0;
  bool from_cache = false;  // loaded from disk
};

// Wall time by operation over all runs of a program.
struct OperationTime {
  std::string op;
  double seconds = 0;
  int64_t calls = 0;
};

class Program {
 public:
  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  virtual ~Program() = default;

  virtual const std::vector<Input>& inputs() const = 0;  // of the graph it was compiled from
  virtual const MemoryPlan& plan() const = 0;
  virtual CompileReport compile_report() const = 0;

  // Gives an input that is no variable its value for the runs to come. Copied to the devices at
  // once, also while a run is still going on.
  virtual void bind(std::string_view input_name, Tensor tensor) = 0;
  // Runs once; may return before it is finished.
  virtual void run() = 0;
  // Of the last run; waits for it. Valid until anything runs on the same executor.
  virtual Tensor output(std::string_view name) = 0;

  virtual std::vector<OperationTime> profile() const { return {}; }  // largest first
};

class Executor {
 public:
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual ~Executor() = default;

  virtual std::string description() const = 0;  // for a person
  virtual int64_t device_count() const = 0;

  // The value of a variable, from now on. It is not copied where that is not needed: what a program
  // replaces must be writable, and stay alone.
  virtual void set_variable(const VariableSpec& spec, Tensor value) = 0;
  virtual bool has_variable(const std::string& name) const = 0;
  virtual Tensor variable(const std::string& name) = 0;  // as the last run left it

  // Raises Error where the graph cannot be run here.
  virtual std::unique_ptr<Program> compile(const Graph& graph) = 0;
  // Allocates what the largest program so far needs, where it is not done already.
  virtual void reserve() = 0;
  virtual size_t arena_bytes() const = 0;  // of the largest program so far
};

}  // namespace graft
