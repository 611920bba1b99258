#pragma once
// Runs train steps and evaluations of one model state on an executor: a compiled program for each
// batch shape.
//
//   StepRunner runner(options, state.tensors, make_executor(compute));
//   runner.prepare({1, 4, 128, 128});                 // compiles, and reserves memory
//   StepResult r = runner.train(batch, {.learning_rate = 1e-3, .step = 1});

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/batches.h"
#include "ir/executor.h"
#include "train/step.h"

namespace graft {

BatchShape shape_of(const Batch& batch);

struct StepScalars {
  double learning_rate = 0;
  int64_t step = 1;  // the optimiser step being taken, from 1: bias correction, dropout
  uint64_t seed = 0;
};

struct StepResult {
  double loss = 0;       // nats per trained token
  double grad_norm = 0;  // before clipping
  bool finite = true;
  std::vector<float> squared_norms;                       // by trained variable, in name order
  std::map<std::string, std::vector<double>> statistics;  // by name, a value a layer
};

struct EvaluationResult {
  double loss_sum = 0;  // nats
  int64_t trained_tokens = 0;
  int64_t tokens = 0;
  double loss() const {
    return trained_tokens > 0 ? loss_sum / static_cast<double>(trained_tokens) : 0;
  }
};

class StepRunner {
 public:
  // `tensors` holds every variable of the options by name, the moments too when training, and must
  // outlive the runner. The native executor updates the trained ones in place; of others they are
  // as of the last fetch().
  StepRunner(StepOptions options, std::map<std::string, Tensor>& tensors,
             std::unique_ptr<Executor> executor);
  // On the native executor.
  StepRunner(StepOptions options, std::map<std::string, Tensor>& tensors, int threads);

  // Brings the trained variables and their moments into `tensors`: for files and reports.
  void fetch();

  // Compile for a shape now, not when it is first met.
  const MemoryPlan& prepare_train(const BatchShape& shape, bool statistics = false);
  const MemoryPlan& prepare_evaluation(const BatchShape& shape);
  // Allocates what the largest prepared program needs. Programs met later may make it grow.
  void reserve();
  size_t arena_bytes() const;  // of the largest program so far

  StepResult train(const Batch& batch, const StepScalars& scalars, bool statistics = false);
  // Adds one batch [1, B, S] to a result.
  void evaluate(const Batch& batch, EvaluationResult& result);

  // Floating-point operations of matrix products in one step of this shape.
  double gemm_flops(const BatchShape& shape);
  const StepOptions& options() const { return options_; }
  // Wall seconds by operation over all train steps of all shapes.
  std::vector<OperationTime> profile() const;
  // Seconds of compiling all programs so far, and how many of them came from a cache.
  struct Compilation {
    double seconds = 0;
    int64_t programs = 0, from_cache = 0;
  };
  Compilation compilation() const;
  Executor& executor() { return *executor_; }

 private:
  struct Compiled {
    std::unique_ptr<Program> program;
    double gemm_flops = 0;
  };
  enum class Kind : uint8_t { kTrain, kTrainWithStatistics, kEvaluate };
  Compiled& compiled(Kind kind, const BatchShape& shape);
  static void bind_batch(Program& program, const Batch& batch, double weight);

  StepOptions options_;
  std::map<std::string, Tensor>& tensors_;
  std::unique_ptr<Executor> executor_;
  std::map<std::pair<Kind, BatchShape>, Compiled> programs_;
};

}  // namespace graft
