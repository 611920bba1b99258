#pragma once
// The native executor: compiles a graph to a list of kernel calls over one planned arena, and runs
// it.
//
// Compiling merges and drops what is not needed, unrolls scans where asked, assigns every value a
// place (liveness, offsets, in-place updates, donated state) and fixes the kernels. Nothing is
// allocated while it runs. The plan's bytes are exact: arena + the inputs' own storage.
//
//   Executable step = compile(graph, {.threads = 2});
//   step.bind(0, weight);                       // state and constants stay bound between runs
//   step.run(arena);

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "ir/executor.h"
#include "ir/graph.h"

namespace graft::cpu {

struct CompileOptions {
  int threads = 1;            // size of the OpenMP team; never changes a bit of the results
  bool unroll_scans = false;  // run scans over layers as straight code
};

// Storage shared by the executables of a run (train, evaluation, decoding): as large as the
// largest.
class Arena {
 public:
  void reserve(size_t bytes);  // grows only, and before use; contents undefined afterwards
  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

class Executable {
 public:
  Executable(Executable&&) noexcept;
  Executable& operator=(Executable&&) noexcept;
  ~Executable();

  const MemoryPlan& plan() const;
  const std::vector<Input>& inputs() const;  // of the graph it was compiled from
  const std::vector<Output>& outputs() const;

  // Binds storage to an input; the tensor's type must be the input's. A donated input is written in
  // place (so it must be writable). Bound tensors are kept alive; one that is not aligned to its
  // element type is copied first.
  void bind(size_t input, Tensor tensor);
  void bind(std::string_view input_name, Tensor tensor);

  // Runs once. Every input must be bound; an arena that is too small grows. Outputs that are not
  // donated are read with output() until the next run of anything on the same arena.
  void run(Arena& arena);
  Tensor output(size_t index) const;  // a copy; donated outputs too
  Tensor output(std::string_view name) const;

  using KernelTime = OperationTime;
  // Wall time by operation over all runs since compiled, largest first (measured always: two clock
  // reads a kernel).
  std::vector<KernelTime> profile() const;
  std::string to_string() const;  // the program: a kernel call a line with offsets

 private:
  friend Executable compile(const Graph&, const CompileOptions&);
  struct Impl;
  explicit Executable(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

Executable compile(const Graph& graph, const CompileOptions& options);

}  // namespace graft::cpu
